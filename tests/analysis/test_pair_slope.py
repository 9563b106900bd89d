"""The headline: against a second implementation, published numbers and planted truths."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.multipliers.base import LEVEL, RefusalError, RefusalReason
from analysis.multipliers.pair_arrays import estimate_pair_slope
from analysis.multipliers.pair_slope import inputs_of, pair_slope, pair_slope_at
from analysis.simulation import Design, simulate
from tests.analysis.studies import arms_of

# Table 2 of arXiv 2603.15031: active parameters without embeddings, tokens, validation losses.
PARAMS = np.array([194e6, 241e6, 296e6, 436e6, 528e6])
TOKENS = np.array([38.7e9, 45.4e9, 62.1e9, 87.9e9, 119.0e9])
PUBLISHED = {
    "baseline": np.array([1.931, 1.895, 1.829, 1.766, 1.719]),
    "block": np.array([1.909, 1.875, 1.809, 1.746, 1.693]),
    "full": np.array([1.899, 1.874, 1.804, 1.737, 1.692]),
    "mhc": np.array([1.906, 1.869, 1.807, 1.747, 1.694]),
}


def published_arms(variant: str, scale: float = 1.0):
    x = np.log(6 * PARAMS * TOKENS / 1e13 * scale)
    return arms_of(x, x, PUBLISHED["baseline"], PUBLISHED[variant])


def by_hand(arms, irreducible: float) -> tuple[float, float, float]:
    """The formula of the docstring for a held E and equal seeds, with scipy's regression."""
    x = (np.log(arms.compute_baseline) + np.log(arms.compute_variant)) / 2
    log_b, log_v = np.log(arms.loss_baseline - irreducible), np.log(arms.loss_variant - irreducible)
    line = stats.linregress(x, (log_b + log_v) / 2)
    a, k = -line.slope, len(x)
    ratio = log_b - log_v
    values = ratio / a - np.log(arms.compute_variant / arms.compute_baseline)
    pair = values.var(ddof=1) / k
    slope = ratio.mean() ** 2 / a**4 * line.stderr**2
    dof = (pair + slope) ** 2 / (pair**2 / (k - 1) + slope**2 / (k - 2))
    half = stats.t.ppf(0.975, dof) * math.sqrt(pair + slope)
    return values.mean(), values.mean() - half, values.mean() + half


@pytest.mark.parametrize("overhead", [0.0, 0.03])
@pytest.mark.parametrize("irreducible", [0.0, 0.9])
def test_held_irreducible_loss_equals_the_formula_by_hand(irreducible, overhead):
    made = simulate(Design(6, 1, 0.002, lack_of_fit=0.003, overhead=overhead), 1.25, 1, seed=4)
    arms = arms_of(*(part[0] for part in made.inputs[:4]))
    found = pair_slope_at(arms, LEVEL, irreducible)
    np.testing.assert_allclose((found.ln_m, found.lo, found.hi), by_hand(arms, irreducible), rtol=1e-9)


@pytest.mark.parametrize(
    ("variant", "m", "lo", "hi"),
    [("block", 1.239, 1.189, 1.291), ("full", 1.306, 1.240, 1.377), ("mhc", 1.264, 1.222, 1.308)],
)
def test_published_table_gives_the_multipliers_of_the_power_law(variant, m, lo, hi):
    found = pair_slope_at(published_arms(variant), LEVEL, 0.0)
    rounded = [round(math.exp(value), 3) for value in (found.ln_m, found.lo, found.hi)]
    assert rounded == [m, lo, hi]


def test_units_of_compute_do_not_matter():
    base = pair_slope(published_arms("block"), LEVEL)
    for scale in (1e12, 1 / 8.64e19):
        other = pair_slope(published_arms("block", scale), LEVEL)
        np.testing.assert_allclose((other.ln_m, other.lo, other.hi), (base.ln_m, base.lo, base.hi), rtol=1e-6)


def test_row_order_does_not_matter():
    arms = published_arms("block")
    order = np.array([3, 1, 4, 0, 2])
    x = np.log(arms.compute_baseline / 1e13)[order]
    mixed = arms_of(x, x, arms.loss_baseline[order], arms.loss_variant[order])
    assert pair_slope(mixed, LEVEL).ln_m == pytest.approx(pair_slope(arms, LEVEL).ln_m, rel=1e-9)


@pytest.mark.parametrize("irreducible", [0.0, 1.3])
@pytest.mark.parametrize("overhead", [0.0, 0.03])
@pytest.mark.parametrize("sizes", range(4, 14))
def test_planted_multiplier_without_noise(sizes, overhead, irreducible):
    exponent = 0.2 if irreducible else 0.057
    design = Design(sizes, 1, 1e-12, exponent=exponent, irreducible=irreducible, overhead=overhead)
    result = estimate_pair_slope(*simulate(design, 1.25, 1, seed=1).inputs)
    assert math.exp(result.ln_m[0]) == pytest.approx(1.25, abs=1e-4)


def test_a_linear_reading_of_the_curve_would_fail_where_the_headline_does_not():
    """The kind of error the estimator avoids: interpolating a convex curve by straight lines."""
    design = Design(4, 1, 1e-12, exponent=0.3, irreducible=1.3)
    made = simulate(design, 1.25, 1, seed=1)
    x, b, v = made.x_baseline[0], made.loss_baseline[0], made.loss_variant[0]
    read = np.array([np.interp(-loss, -b, x) for loss in v[:-1]]) - x[:-1]
    assert math.exp(read.mean()) > 1.27
    assert math.exp(estimate_pair_slope(*made.inputs).ln_m[0]) == pytest.approx(1.25, abs=1e-3)


@pytest.mark.parametrize("irreducible", [0.0, 1.3])
@pytest.mark.parametrize("overhead", [0.0, 0.03])
def test_arms_swapped_give_the_reciprocal(irreducible, overhead):
    design = Design(6, 1, 0.003, lack_of_fit=0.004, irreducible=irreducible, overhead=overhead, exponent=0.1)
    for seed in range(5):
        arms = arms_of(*(part[0] for part in simulate(design, 1.25, 1, seed).inputs[:4]))
        there, back = pair_slope(arms, LEVEL), pair_slope(arms.swapped(), LEVEL)
        np.testing.assert_allclose(
            (there.ln_m, there.lo, there.hi), (-back.ln_m, -back.hi, -back.lo), rtol=1e-9, atol=1e-12
        )


def test_an_arm_against_itself_is_exactly_one():
    arms = published_arms("baseline")
    found = pair_slope(arms, LEVEL)
    assert (found.compute_multiplier, found.lo, found.hi, found.status) == (1.0, 0.0, 0.0, "identical")


def test_seeds_weigh_a_size():
    """A rung of nine seeds counts nine times as much as a rung of one."""
    x = np.linspace(0, 3, 5)
    b = 1.8 * np.exp(-0.057 * x)
    v = b * np.exp(-0.057 * np.array([0.5, 0.1, 0.1, 0.1, 0.1]))
    result = estimate_pair_slope(*inputs_of(arms_of(x, x, b, v, seeds=[9, 1, 1, 1, 1])), 0.0)
    rungs = result.rung_ln_m[0]
    assert rungs[0] > 3 * rungs[1:].max()
    assert result.ln_m[0] == pytest.approx((9 * rungs[0] + rungs[1:].sum()) / 13, rel=1e-9)


def test_studies_in_a_batch_are_independent():
    made = simulate(Design(5, 2, 0.004, lack_of_fit=0.004), 1.25, 40, seed=9)
    together = estimate_pair_slope(*made.inputs)
    alone = [estimate_pair_slope(*(part[i : i + 1] for part in made.inputs)) for i in range(40)]
    np.testing.assert_allclose(together.ln_m, [one.ln_m[0] for one in alone], rtol=1e-12)
    np.testing.assert_allclose(together.variance, [one.variance[0] for one in alone], rtol=1e-9)


def refusal_of(arms) -> RefusalReason:
    with pytest.raises(RefusalError) as caught:
        pair_slope(arms, LEVEL)
    assert str(caught.value).startswith(caught.value.reason.value)
    return caught.value.reason


def test_every_refusal_is_typed():
    x = np.linspace(0, 3, 5)
    b = 1.8 * np.exp(-0.057 * x)
    noise = np.array([1, -2, 3, -1, 2]) * 1e-3
    good = arms_of(x, x, b, b - 0.02 + noise)
    assert pair_slope(good, LEVEL).status == "converged"
    three = arms_of(x[:3], x[:3], b[:3], b[:3] - 0.02 + noise[:3])
    assert refusal_of(three) is RefusalReason.TOO_FEW_SIZES
    one_budget = arms_of(x * 0, x * 0, b, b - 0.02 + noise)
    assert refusal_of(one_budget) is RefusalReason.NOT_IDENTIFIABLE
    apart = arms_of(x, x, b, b - 1.0 + noise)
    assert refusal_of(apart) is RefusalReason.NO_OVERLAP
    rising = arms_of(x, x, b[::-1], b[::-1] - 0.02 + noise)
    assert refusal_of(rising) is RefusalReason.NOT_IDENTIFIABLE
    exact = arms_of(x, x, b, b * np.exp(-0.057 * 0.2))
    assert refusal_of(exact) is RefusalReason.NO_VARIANCE


def test_a_fixed_irreducible_loss_above_a_loss_is_refused():
    with pytest.raises(RefusalError, match="leaves no excess"):
        pair_slope_at(published_arms("block"), LEVEL, 1.8)
