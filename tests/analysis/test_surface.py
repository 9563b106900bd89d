"""m between two surfaces L(N, D): planted on a grid that varies N and D apart, refused on a ladder."""

import dataclasses
import math

import numpy as np
import pytest

from analysis.forms.chinchilla import Chinchilla
from analysis.multipliers.base import LEVEL, MULTIPLIERS, RefusalError
from tests.analysis.studies import arms_of, ask, made_study

LAWS = {
    "E = 0": {"E": 0.0, "A": 8.4, "alpha": 0.11, "B": 13.0, "beta": 0.115},
    "E = 1.8": {"E": 1.8, "A": 480.0, "alpha": 0.35, "B": 2100.0, "beta": 0.37},
}
"""Losses of 1.8 to 2.4 and of 2.1 to 4.2 nats on the grid below."""
FORM = Chinchilla()
TRUTH_LN_M = math.log(1.25)


def grid_arms(
    noise: float, seed: int = 0, *, law: str = "E = 1.8", sizes: int = 7, budgets: int = 3, m: float = 1.25
):
    """Sizes x budgets over 30x; the variant's A and B are scaled so that its frontier is moved by m on exact
    FLOPs, of which it has 3 % more a token. Noise: 1 shared by the arms, 1/3 of its own."""
    rng = np.random.default_rng(seed)
    truth, overhead = LAWS[law], 0.03
    params = np.geomspace(1e7, 3e8, sizes)
    n, c = (part.ravel() for part in np.meshgrid(params, np.geomspace(1e18, 3e19, budgets)))
    d = c / (6 * n)
    gamma = truth["alpha"] * truth["beta"] / (truth["alpha"] + truth["beta"])
    factor = (m * (1 + overhead)) ** -gamma
    better = truth | {"A": truth["A"] * factor, "B": truth["B"] * factor}
    shift = rng.normal(0, noise, len(n))
    base, variant = (
        FORM.predict(own, {"params": n, "tokens": d}) + shift + rng.normal(0, noise / 3, len(n))
        for own in (truth, better)
    )
    arms = arms_of(np.log(c / 1e13), np.log(c * (1 + overhead) / 1e13), base, variant)
    names = tuple(f"s{np.searchsorted(params, value)}" for value in n)
    return dataclasses.replace(arms, sizes=names, params_baseline=n, params_variant=n, tokens=d)


@pytest.mark.parametrize("budgets", [4, 7, 13])
@pytest.mark.parametrize("sizes", [6, 9])
@pytest.mark.parametrize("law", LAWS)
def test_planted_frontiers_are_told_apart_without_bias(law, sizes, budgets):
    for seed in range(3):
        arms = grid_arms(1e-5, seed, law=law, sizes=sizes, budgets=budgets)
        found = MULTIPLIERS.get("surface")(arms, LEVEL)
        assert found.compute_multiplier == pytest.approx(1.25, abs=0.005)
        assert found.form == "chinchilla"


def coverage_of_surface(law: str, studies: int) -> tuple[float, float]:
    """Share of intervals that hold the truth, median of m."""
    found = [MULTIPLIERS.get("surface")(grid_arms(2e-3, seed, law=law), LEVEL) for seed in range(studies)]
    covered = float(np.mean([one.lo <= TRUTH_LN_M <= one.hi for one in found]))
    return covered, float(np.median([one.compute_multiplier for one in found]))


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_interval_of_the_surface_covers_its_share(law):
    """600 studies: 95 % +- 2.7 % is 3 standard errors."""
    covered, median = coverage_of_surface(law, 600)
    assert 0.92 <= covered <= 0.98
    assert abs(median - 1.25) < 0.005


@pytest.mark.parametrize("law", LAWS)
def test_interval_of_the_surface_covers_in_a_small_simulation(law):
    """40 studies: fewer than 33 happen once in a thousand at 95 %, and one in two at 83 %."""
    covered, median = coverage_of_surface(law, 40)
    assert covered >= 33 / 40
    assert abs(median - 1.25) < 0.006


def test_swapped_surfaces_give_the_reciprocal_where_the_frontiers_are_parallel():
    arms = grid_arms(1e-5)
    there, back = (MULTIPLIERS.get("surface")(each, LEVEL) for each in (arms, arms.swapped()))
    assert there.ln_m == pytest.approx(-back.ln_m, abs=1e-3)


def test_an_arm_against_itself_is_one():
    arms = grid_arms(2e-3)
    one = {"loss_variant": arms.loss_baseline, "pair_loss_variant": arms.pair_loss_baseline}
    same = dataclasses.replace(arms, compute_variant=arms.compute_baseline, **one)
    found = MULTIPLIERS.get("surface")(same, LEVEL)
    assert (found.compute_multiplier, found.lo, found.hi, found.status) == (1.0, 0.0, 0.0, "identical")


def test_a_ladder_does_not_determine_a_surface(tmp_path):
    row = ask(made_study(tmp_path, sizes=8), estimator="surface").row()
    assert row["status"].startswith("refused: not identifiable: on a ladder tokens follow parameters")


def test_five_sizes_are_too_few(tmp_path):
    row = ask(made_study(tmp_path), estimator="surface").row()
    assert row["status"].startswith("refused: too few sizes: 5 with finished pairs")
    assert row["status"].endswith("6 needed")


def test_unknown_parameters_are_refused():
    arms = dataclasses.replace(grid_arms(1e-3), params_variant=np.full(21, np.nan))
    with pytest.raises(RefusalError, match="needs the parameters"):
        MULTIPLIERS.get("surface")(arms, LEVEL)
