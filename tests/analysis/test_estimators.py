"""Every registered estimator: planted multipliers, symmetry, identity; nothing is dropped in silence."""

import math

import numpy as np
import pytest

from analysis.multipliers.base import LEVEL, MULTIPLIERS, RefusalError
from analysis.simulation import Design, simulate
from tests.analysis.studies import VARIANT, arms_of, ask, made_study

LADDER_ESTIMATORS = ("fitted_curve", "joint", "pair_slope", "pair_trend")


def test_the_estimators_of_a_ladder_are_registered():
    assert set(LADDER_ESTIMATORS) <= set(MULTIPLIERS)


def planted_arms(design: Design, seed: int, m: float = 1.25):
    return arms_of(*(part[0] for part in simulate(design, m, 1, seed).inputs[:4]))


@pytest.mark.parametrize("estimator", LADDER_ESTIMATORS)
@pytest.mark.parametrize(("irreducible", "exponent"), [(0.0, 0.057), (1.3, 0.2)])
@pytest.mark.parametrize("sizes", [4, 5, 7, 10, 13])
def test_f12_planted_multiplier_is_recovered_without_bias(estimator, sizes, irreducible, exponent):
    """Noise of 1e-5 nats: what is left is bias. The variant costs 3 % more a token."""
    design = Design(sizes, 1, 1e-5, exponent=exponent, irreducible=irreducible, overhead=0.03)
    found = MULTIPLIERS.get(estimator)(planted_arms(design, seed=sizes), LEVEL)
    assert found.compute_multiplier == pytest.approx(1.25, abs=0.005)


@pytest.mark.parametrize("estimator", LADDER_ESTIMATORS)
@pytest.mark.parametrize(("irreducible", "exponent"), [(0.0, 0.057), (1.3, 0.2)])
def test_median_over_noisy_studies_is_the_planted_one(estimator, irreducible, exponent):
    design = Design(7, 2, 0.001, 0.5, 0.002, exponent=exponent, irreducible=irreducible)
    made = simulate(design, 1.25, 40, seed=3)
    found = []
    for i in range(40):
        arms = arms_of(*(part[i] for part in made.inputs[:4]))
        found.append(MULTIPLIERS.get(estimator)(arms, LEVEL).ln_m)
    spread = np.std(found) / math.sqrt(len(found))
    assert abs(np.median(found) - math.log(1.25)) < max(0.004, 4 * spread)


@pytest.mark.parametrize("estimator", ["joint", "pair_slope", "pair_trend"])
def test_f12_arms_swapped_give_the_reciprocal(estimator):
    for seed in range(4):
        arms = planted_arms(Design(6, 1, 0.002, lack_of_fit=0.003), seed)
        there = MULTIPLIERS.get(estimator)(arms, LEVEL)
        back = MULTIPLIERS.get(estimator)(arms.swapped(), LEVEL)
        assert there.ln_m == pytest.approx(-back.ln_m, abs=2e-4)
        assert there.lo == pytest.approx(-back.hi, abs=5e-4)


@pytest.mark.parametrize("estimator", LADDER_ESTIMATORS)
def test_f12_an_arm_against_itself_is_exactly_one(estimator):
    arms = planted_arms(Design(5, 1, 0.002, lack_of_fit=0.003), 0)
    same = arms_of(
        np.log(arms.compute_baseline / 1e13),
        np.log(arms.compute_baseline / 1e13),
        arms.loss_baseline,
        arms.loss_baseline,
    )
    found = MULTIPLIERS.get(estimator)(same, LEVEL)
    assert (found.compute_multiplier, found.lo, found.hi, found.status) == (1.0, 0.0, 0.0, "identical")


@pytest.mark.parametrize("estimator", LADDER_ESTIMATORS)
def test_every_estimator_refuses_three_sizes(estimator):
    arms = planted_arms(Design(3, 3, 0.002), 0)
    with pytest.raises(RefusalError, match="too few sizes"):
        MULTIPLIERS.get(estimator)(arms, LEVEL)


@pytest.mark.parametrize("estimator", LADDER_ESTIMATORS)
def test_intervals_are_wider_with_more_noise(estimator):
    quiet, loud = (
        MULTIPLIERS.get(estimator)(planted_arms(Design(6, 1, sd, lack_of_fit=sd), 7), LEVEL)
        for sd in (5e-4, 4e-3)
    )
    assert loud.hi - loud.lo > 2 * (quiet.hi - quiet.lo)


def test_trend_sees_exponents_that_differ():
    """ln m grows along the ladder: the trend reads it at the end, the headline averages it."""
    x = np.linspace(-1.7, 1.7, 8)
    rng = np.random.default_rng(0)
    b = 1.8 * np.exp(-0.057 * x)
    v = 1.8 * np.exp(-0.057 * (x + math.log(1.25) + 0.06 * x)) + rng.normal(0, 2e-4, 8)
    arms = arms_of(x, x, b, v)
    trend = MULTIPLIERS.get("pair_trend")(arms, LEVEL)
    assert trend.at == pytest.approx(arms.compute_variant.max())
    assert trend.ln_m == pytest.approx(math.log(1.25) + 0.06 * 1.7, abs=0.02)
    assert MULTIPLIERS.get("pair_slope")(arms, LEVEL).ln_m == pytest.approx(math.log(1.25), abs=0.02)


def test_planted_study_on_every_axis(tmp_path):
    """A multiplier planted on exact FLOPs, 3 % overhead: 1.25 on exact, 1.25 x 1.03 at equal tokens."""
    study = made_study(tmp_path, overhead=0.03, noise=2e-5, lack_of_fit=0.0)
    exact, tokens = (ask(study, axis=axis).estimate for axis in ("exact", "tokens"))
    assert exact.compute_multiplier == pytest.approx(1.25, abs=0.005)
    assert tokens.compute_multiplier == pytest.approx(1.25 * 1.03, abs=0.005)
    for axis in ("6nd", "6nd_total", "no_head"):
        found = ask(study, axis=axis).estimate
        assert 1.1 < found.compute_multiplier < 1.5


def test_refused_rows_stay_in_the_table_without_numbers(tmp_path):
    study = made_study(tmp_path, sizes=3)
    row = ask(study, variant=VARIANT).row()
    assert row["status"].startswith("refused: too few sizes: 3 ")
    assert row.get("compute_multiplier") is None
    assert row["verdict"] == "refused"
