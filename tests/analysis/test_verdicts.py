"""Words follow from intervals; null results read as null results."""

import math

import pytest

from analysis.multipliers.base import Estimate
from analysis.verdicts import verdict_of
from tests.analysis.studies import ask, made_study


def estimate(lo: float, hi: float, status: str = "converged") -> Estimate:
    ln_m = (math.log(lo) + math.log(hi)) / 2
    return Estimate(ln_m, math.log(lo), math.log(hi), 0.1, 4.0, 0.95, "power_law", "", status=status)


@pytest.mark.parametrize(
    ("lo", "hi", "words"),
    [
        (1.01, 1.3, "saves compute: resolved"),
        (0.8, 0.99, "costs compute: resolved"),
        (0.9, 1.2, "not resolved at n = 5 sizes: no detectable gain"),
        (1.0, 1.2, "not resolved at n = 5 sizes: no detectable gain"),
    ],
)
def test_verdicts(lo, hi, words):
    assert verdict_of(estimate(lo, hi), 5) == words


def test_r09_equal_models_are_reported_as_no_detectable_gain(tmp_path):
    """Both arms from one law: of 30 studies at most a few claim a difference."""
    claims = []
    for seed in range(30):
        study = made_study(tmp_path / str(seed), compute_multiplier=1.0, seed=seed)
        claims.append(ask(study).row()["verdict"])
    assert sum("resolved" in c and "not" not in c for c in claims) <= 5
    assert sum("no detectable gain" in c for c in claims) >= 25


def test_r10_runs_of_twenty_steps_give_no_multiplier(tmp_path):
    study = made_study(tmp_path)
    study.runs["steps"] = 20
    assert ask(study).row()["status"].startswith("refused: runs too short: d2w64 was planned for 20 steps")


def test_r10_too_few_budgets_says_what_is_missing(tmp_path):
    row = ask(made_study(tmp_path, sizes=2, seeds=5)).row()
    assert row["status"] == "refused: too few sizes: 2 with finished pairs (d2w64, d3w96), 4 needed"
