"""m between two surfaces L(N, D): planted on a grid that varies N and D apart, refused on a ladder."""

import dataclasses
import math

import numpy as np
import pytest

from analysis.forms.chinchilla import Chinchilla
from analysis.multipliers.base import LEVEL, MULTIPLIERS, RefusalError
from tests.analysis.studies import arms_of, ask, made_study

TRUTH = {"E": 1.8, "A": 480.0, "alpha": 0.35, "B": 2100.0, "beta": 0.37}


def grid_arms(noise: float, seed: int = 0, m: float = 1.25, overhead: float = 0.03):
    """7 sizes x 3 budgets; the variant's A and B are scaled so that its frontier is moved by m on exact FLOPs."""
    rng = np.random.default_rng(seed)
    sizes = np.geomspace(1e7, 3e8, 7)
    n, c = (part.ravel() for part in np.meshgrid(sizes, np.geomspace(1e18, 3e19, 3)))
    d = c / (6 * n)
    gamma = TRUTH["alpha"] * TRUTH["beta"] / (TRUTH["alpha"] + TRUTH["beta"])
    factor = (m * (1 + overhead)) ** -gamma
    form = Chinchilla()
    shift = rng.normal(0, noise, len(n))
    base = form.predict(TRUTH, {"params": n, "tokens": d}) + shift + rng.normal(0, noise / 3, len(n))
    better = TRUTH | {"A": TRUTH["A"] * factor, "B": TRUTH["B"] * factor}
    variant = form.predict(better, {"params": n, "tokens": d}) + shift + rng.normal(0, noise / 3, len(n))
    arms = arms_of(np.log(c / 1e13), np.log(c * (1 + overhead) / 1e13), base, variant)
    names = tuple(f"s{np.searchsorted(sizes, value)}" for value in n)
    return dataclasses.replace(arms, sizes=names, params_baseline=n, params_variant=n, tokens=d)


def test_planted_frontiers_are_told_apart():
    found = MULTIPLIERS.get("surface")(grid_arms(1e-5), LEVEL)
    assert found.compute_multiplier == pytest.approx(1.25, abs=0.005)
    assert found.form == "chinchilla"


def test_interval_covers_the_planted_multiplier():
    covered = []
    for seed in range(40):
        found = MULTIPLIERS.get("surface")(grid_arms(2e-3, seed), LEVEL)
        covered.append(found.lo <= math.log(1.25) <= found.hi)
    assert sum(covered) >= 33


def test_a_ladder_does_not_determine_a_surface(tmp_path):
    row = ask(made_study(tmp_path, sizes=8), estimator="surface").row()
    assert row["status"].startswith("refused: not identifiable: surface of additive: ")


def test_five_sizes_are_too_few(tmp_path):
    row = ask(made_study(tmp_path), estimator="surface").row()
    assert row["status"].startswith("refused: too few sizes: 5 with finished pairs")
    assert row["status"].endswith("6 needed")


def test_unknown_parameters_are_refused():
    arms = dataclasses.replace(grid_arms(1e-3), params_variant=np.full(21, np.nan))
    with pytest.raises(RefusalError, match="needs the parameters"):
        MULTIPLIERS.get("surface")(arms, LEVEL)
