"""The AttnRes paper's numbers: consistent with each other, and what they imply. Always run: no data files needed."""

import numpy as np
import pytest
from scipy import stats

from analysis.forms.base import form_named
from analysis.multipliers.pair_slope import estimate_pair_slope
from analysis.published import attnres_ablations as ablations
from analysis.published import attnres_cost as cost
from analysis.published import attnres_dynamics as dynamics
from analysis.published import attnres_scaling as paper
from analysis.published import attnres_weights as weights
from analysis.published.replications import (
    MARIN_ASYMPTOTE,
    MARIN_EXPONENT,
    MARIN_SPEED_UP,
    REPLICATIONS,
)
from analysis.solve import fit

POWER = form_named("power_law")
COMPUTE = np.array([cell.compute_6nd for cell in paper.TABLE_2])


def losses(arm: str) -> np.ndarray:
    return np.array([cell.loss[arm] for cell in paper.TABLE_2])


def pair_and_slope(variant: str) -> tuple[float, float, float, float]:
    """The headline formula of the specification, written out here on its own: m, lo, hi, exponent."""
    x = np.log(COMPUTE)
    base, other = np.log(losses(paper.BASELINE)), np.log(losses(variant))
    line = stats.linregress(x, (base + other) / 2)
    exponent, sizes = -line.slope, len(x)
    gain = (base - other) / exponent
    ln_m = gain.mean()
    pairs = gain.var(ddof=1) / sizes
    slope = (ln_m * line.stderr / exponent) ** 2
    dof = (pairs + slope) ** 2 / (pairs**2 / (sizes - 1) + slope**2 / (sizes - 2))
    half = stats.t.ppf(0.975, dof) * np.sqrt(pairs + slope)
    return np.exp(ln_m), np.exp(ln_m - half), np.exp(ln_m + half), exponent


def test_table_2_is_internally_consistent():
    assert [cell.num_heads for cell in paper.TABLE_2] == [cell.depth for cell in paper.TABLE_2]
    for cell in paper.TABLE_2:
        assert 188 <= round(cell.tokens / cell.params_active) <= 225
        assert 0.44 < cell.mlp_width / cell.width < 0.46
        assert all(cell.loss[arm] < cell.loss[paper.BASELINE] for arm in paper.VARIANTS)
    np.testing.assert_allclose(
        COMPUTE / paper.FLOPS_PER_PFLOPS_DAY, [0.5214, 0.7598, 1.2765, 2.6614, 4.3633], atol=5e-5
    )
    ratio = np.array(paper.PLOTTED_COMPUTE_PFLOPS_DAYS) * paper.FLOPS_PER_PFLOPS_DAY / COMPUTE
    assert ratio.min() > 1.255 and ratio.max() < 1.375


@pytest.mark.parametrize(
    ("arm", "coefficient", "alpha"),
    [(paper.BASELINE, 1.8921, 0.0566), (paper.BLOCK, 1.8716, 0.0582), (paper.FULL, 1.8653, 0.0574),
     (paper.MHC, 1.8680, 0.0566)],
)  # fmt: skip
def test_the_five_points_give_these_power_laws_on_the_plotted_axis(arm, coefficient, alpha):
    result = fit(POWER, {"compute": np.array(paper.PLOTTED_COMPUTE_PFLOPS_DAYS)}, losses(arm))
    assert result.parameters["A"] == pytest.approx(coefficient, abs=5e-5)
    assert result.parameters["alpha"] == pytest.approx(alpha, abs=5e-5)


@pytest.mark.parametrize(
    ("arm", "alpha"), [(paper.BASELINE, 0.0549), (paper.BLOCK, 0.0565), (paper.FULL, 0.0558)]
)
def test_exponents_on_6nd(arm, alpha):
    assert fit(POWER, {"compute": COMPUTE}, losses(arm)).parameters["alpha"] == pytest.approx(alpha, abs=5e-5)


@pytest.mark.parametrize(
    ("variant", "m", "lo", "hi", "p"),
    [(paper.BLOCK, 1.239, 1.189, 1.291, 0.16), (paper.FULL, 1.306, 1.240, 1.377, 0.58),
     (paper.MHC, 1.264, 1.222, 1.308, 0.99)],
)  # fmt: skip
def test_the_multipliers_of_table_2(variant, m, lo, hi, p):
    assert pair_and_slope(variant)[:3] == pytest.approx((m, lo, hi), abs=5e-4)
    paired = stats.linregress(np.log(COMPUTE), np.log(losses(paper.BASELINE)) - np.log(losses(variant)))
    assert paired.pvalue == pytest.approx(p, abs=5e-3)


def test_the_headline_estimator_is_the_formula_when_e_is_zero():
    x, ones = np.log(COMPUTE)[None], np.ones((1, len(COMPUTE)))
    for variant in paper.VARIANTS:
        arms = losses(paper.BASELINE)[None], losses(variant)[None]
        headline = estimate_pair_slope(x, x, *arms, ones, irreducible=0.0)
        half = stats.t.ppf(0.975, headline.dof) * np.sqrt(headline.variance)
        ends = (headline.ln_m[0], headline.ln_m[0] - half[0], headline.ln_m[0] + half[0])
        assert np.exp(ends) == pytest.approx(pair_and_slope(variant)[:3], rel=1e-9)


def test_the_exponent_of_the_formula_is_the_one_of_the_solver():
    """The arm-averaged curve of the formula is a power law through the geometric means of the losses."""
    for variant in paper.VARIANTS:
        mean = np.sqrt(losses(paper.BASELINE) * losses(variant))
        result = fit(POWER, {"compute": COMPUTE}, mean)
        assert result.parameters["alpha"] == pytest.approx(pair_and_slope(variant)[3], rel=1e-9)


@pytest.mark.parametrize(
    ("curves", "loss_baseline", "loss_block", "m"),
    [(paper.PRINTED_CURVES, 1.7141, 1.6922, 1.254), (paper.PLOTTED_CURVES, 1.7154, 1.6927, 1.267)],
    ids=["printed", "plotted"],
)
def test_the_claim_follows_from_the_curves(curves, loss_baseline, loss_block, m):
    at = paper.CLAIM.compute_pflops_days
    base, block = ({"A": curves[arm].A, "alpha": curves[arm].alpha} for arm in (paper.BASELINE, paper.BLOCK))
    assert POWER.predict(base, {"compute": at}) == pytest.approx(loss_baseline, abs=5e-5)
    reached = POWER.predict(block, {"compute": at})
    assert reached == pytest.approx(loss_block, abs=5e-5)
    assert POWER.inverse(base, reached) / at == pytest.approx(m, abs=5e-4)


def test_the_printed_losses_of_the_claim_are_those_of_the_printed_curves():
    assert round(1.7141, 3) == paper.CLAIM.loss_baseline
    assert round(1.6922, 3) == paper.CLAIM.loss_variant
    assert round(1.254, 2) == paper.CLAIM.compute_multiplier


@pytest.mark.parametrize(
    ("variant", "expected"),
    [(paper.BLOCK, (1.23, 1.21, 1.22, 1.22, 1.31)), (paper.FULL, (1.34, 1.22, 1.28, 1.34, 1.32)),
     (paper.MHC, (1.26, 1.28, 1.24, 1.21, 1.30))],
)  # fmt: skip
def test_multipliers_point_by_point(variant, expected):
    measured = (losses(paper.BASELINE) / losses(variant)) ** (1 / paper.PLOTTED_CURVES[paper.BASELINE].alpha)
    # Two decimals, from an exponent that is itself known to four: 0.005 + 0.0003.
    np.testing.assert_allclose(measured, expected, rtol=0, atol=5.3e-3)


def test_figure_5_has_one_value_per_transformer_block():
    series = (
        dynamics.OUTPUT_MAGNITUDE_BASELINE,
        dynamics.OUTPUT_MAGNITUDE_BLOCK,
        dynamics.GRADIENT_MAGNITUDE_BASELINE,
        dynamics.GRADIENT_MAGNITUDE_BLOCK,
    )
    assert {len(values) for values in series} == {27}
    ratios = [max(values) / min(values) for values in series[2:]]
    assert ratios == pytest.approx([36, 8.3], rel=0.02)
    gaps = [point.baseline - point.block_attnres for point in dynamics.VALIDATION_LOSS]
    assert [round(gap, 3) for gap in gaps] == [0.009, 0.010, 0.011, 0.014, 0.015, 0.017, 0.018]
    last = dynamics.VALIDATION_LOSS[-1].step
    assert last * dynamics.TOKENS_PER_STEP == pytest.approx(1e12, rel=1e-3)


def test_figure_6_and_table_4_share_their_common_numbers():
    by_label = {row.label: row.loss for row in ablations.TABLE_4}
    assert len(by_label) == 12
    assert ablations.BLOCK_SIZE_LOSS[4] == by_label["Block AttnRes, S = 4"]
    assert ablations.BLOCK_SIZE_BASELINE == by_label["PreNorm"] == paper.TABLE_2[3].loss[paper.BASELINE]
    assert ablations.BLOCK_SIZE_FULL == by_label["Full AttnRes"] == paper.TABLE_2[3].loss[paper.FULL]
    assert by_label["mHC"] == paper.TABLE_2[3].loss[paper.MHC]


def test_figure_7_gain_of_every_cell():
    gain = np.array(ablations.ARCHITECTURE_BASELINE) - np.array(ablations.ARCHITECTURE_ATTNRES)
    assert gain.shape == (len(ablations.HEADS_OVER_DEPTH), len(ablations.WIDTH_OVER_DEPTH))
    assert gain.min() == pytest.approx(0.019) and gain.max() == pytest.approx(0.063)
    assert gain.mean() == pytest.approx(0.041, abs=5e-4)
    best = np.min(ablations.ARCHITECTURE_BASELINE) - np.min(ablations.ARCHITECTURE_ATTNRES)
    assert best == pytest.approx(0.045)


def test_figure_8_rows_are_softmax_weights_over_the_sources_of_two_transformer_blocks_each():
    for block, row in enumerate(weights.BLOCK_BEFORE_ATTENTION, start=1):
        assert len(row) == (block + 1) // 2 + (block % 2 == 0)
        assert sum(row) == pytest.approx(1, abs=0.006)
    for block, row in enumerate(weights.BLOCK_BEFORE_MLP, start=1):
        assert len(row) == (block + 1) // 2 + 1
        assert sum(row) == pytest.approx(1, abs=0.006)
    assert len(weights.FULL_EMBEDDING_BEFORE_ATTENTION) == len(weights.FULL_EMBEDDING_BEFORE_MLP) == 16
    assert len(weights.FULL_PREVIOUS_BEFORE_ATTENTION) == 15 and len(weights.FULL_PREVIOUS_BEFORE_MLP) == 16


def test_table_1_totals_follow_from_their_formulas():
    assert cost.standard_io() == cost.TYPICAL_TOTAL["standard"]
    assert cost.mhc_io(4) == cost.TYPICAL_TOTAL["mhc"]
    assert cost.full_two_phase_io(8, 16) == cost.TYPICAL_TOTAL["full_two_phase"]
    assert cost.block_two_phase_io(8, 16) == cost.TYPICAL_TOTAL["block_two_phase"]


def test_replications_keep_their_derived_numbers():
    ilml = [row for row in REPLICATIONS if row.source.startswith("ilml/Attention-Residuals README @")]
    derived = [(row.baseline / row.arms["block_attnres"]) ** (1 / 0.078) for row in ilml]
    np.testing.assert_allclose(derived, (1.29, 1.14, 1.11, 1.16, 1.28), atol=6e-3)
    marin = [row for row in REPLICATIONS if "marin" in row.source]
    speed = [
        ((row.baseline - MARIN_ASYMPTOTE) / (row.arms["attn_residuals"] - MARIN_ASYMPTOTE))
        ** (1 / MARIN_EXPONENT)
        for row in marin
    ]
    assert speed == pytest.approx(MARIN_SPEED_UP, abs=5e-3)
    assert all(row.baseline > 0 and row.arms for row in REPLICATIONS)
