"""Power of a plan: the formula against simulation, monotone, refusals, the words of the command."""

import math
from dataclasses import replace

import pytest

from analysis.commands import main
from analysis.outlook import ASSUMED, outlook
from analysis.power import check_power, expected, pairs_first_guess, seeds_needed
from analysis.simulation import Design, coverage
from attnres.errors import UserError
from tests.analysis.studies import VARIANT, made_study

DESIGNS = {
    "five sizes": Design(5, 1, 0.005, lack_of_fit=0.005, compute_range=6),
    "two seeds": Design(5, 2, 0.004, 0.5, 0.003),
    "eight sizes": Design(8, 2, 0.01, lack_of_fit=0.003),
    "twelve sizes": Design(12, 1, 0.01),
    "unequal seeds": Design(5, (3, 3, 1, 1, 1), 0.004, 0.5, 0.003),
}


@pytest.mark.parametrize("m", [1.05, 1.1, 1.25])
@pytest.mark.parametrize("name", DESIGNS)
def test_power_agrees_with_simulated_studies(name, m):
    design = DESIGNS[name]
    assert expected(design, m).power == pytest.approx(check_power(design, m), abs=0.04)


def test_power_with_an_irreducible_loss_is_not_promised_too_high():
    design = Design(5, 1, 0.005, lack_of_fit=0.005, exponent=0.2, irreducible=1.3)
    for m in (1.05, 1.1):
        simulated = check_power(design, m)
        assert simulated - 0.08 < expected(design, m).power < simulated + 0.02


@pytest.mark.parametrize("name", DESIGNS)
def test_expected_interval_has_the_width_of_simulated_ones(name):
    found = expected(DESIGNS[name], 1.25)
    assert found.hi - found.lo == pytest.approx(coverage(DESIGNS[name], 1.25, 1500, 1).width, rel=0.12)


def test_seeds_needed_reach_the_power_and_one_less_does_not():
    design = DESIGNS["five sizes"]
    needed = seeds_needed(design, 1.05, power=0.8)
    assert needed is not None and needed > 1
    assert expected(replace(design, num_seeds=needed), 1.05).power >= 0.8
    assert expected(replace(design, num_seeds=needed - 1), 1.05).power < 0.8


def test_first_guess_promises_too_much_at_few_sizes():
    """The known-variance formula's pairs give about 56 % at five sizes, not 80 %."""
    design = Design(5, 1, 0.005, compute_range=6)
    m = math.exp(math.sqrt(2) * 2.8 * design.seed_sd / design.slope / math.sqrt(5))
    assert pairs_first_guess(design, m) == pytest.approx(5, rel=0.02)
    assert 0.5 < expected(design, m).power < 0.65


def test_some_differences_need_more_than_seeds():
    """Where the curve's own error is the limit, no number of seeds resolves a tiny difference of large m."""
    hopeless = Design(4, 1, 0.001, lack_of_fit=0.05, compute_range=2)
    assert seeds_needed(hopeless, 1.26, 1.25) is None


@pytest.mark.parametrize(
    ("changes", "m", "words"),
    [
        ({"num_sizes": 3, "num_seeds": 1}, 1.2, "3 sizes"),
        ({"num_seeds": (1, 1)}, 1.2, "2 numbers of seeds for 5 sizes"),
        ({"num_seeds": 0}, 1.2, "0 seeds"),
        ({"seed_sd": float("nan")}, 1.2, "seed sd nan"),
        ({"seed_sd": -1.0}, 1.2, "seed sd -1.0"),
        ({"correlation": 1.0}, 1.2, "correlation 1.0"),
        ({"compute_range": 1.0}, 1.2, "compute range 1.0"),
        ({"irreducible": 2.0}, 1.2, "irreducible loss 2.0"),
        ({}, -1.0, "multipliers -1.0"),
        ({}, 1.0, "both multipliers are 1.0"),
    ],
)
def test_impossible_designs_are_named(changes, m, words):
    with pytest.raises(UserError, match=words):
        expected(replace(ASSUMED, **changes), m)


def test_outlook_counts_one_arm_of_the_plan(tmp_path):
    cells = [cell.model_dump() for cell in made_study(tmp_path, seeds=(3, 2, 1)).plan.cells]
    lines = outlook(cells)
    assert lines[0].startswith("5 sizes over 30x, seeds 3/2/1/1/1;")
    assert len(lines) == 4


def test_outlook_of_too_small_a_plan_says_so(tmp_path):
    cells = [cell.model_dump() for cell in made_study(tmp_path, sizes=3).plan.cells]
    assert outlook(cells)[1].startswith("no headline from this plan: 3 sizes")
    with pytest.raises(UserError, match="no cells of a ladder"):
        outlook([])


def test_command_takes_noise_from_a_pilot(tmp_path, capsys):
    study = made_study(tmp_path, noise=0.006)
    assert main(["power", "--pilot", str(study.folder), "--variant", VARIANT, "--multiplier", "1.1"]) == 0
    out = capsys.readouterr().out
    assert "5 sizes over 30x" in out and "a true 1.1 would read 1.1 [" in out and "seeds a size" in out


def test_command_refuses_a_pilot_without_an_arm(tmp_path, capsys):
    assert main(["power", "--pilot", str(made_study(tmp_path).folder)]) == 2
    assert "--pilot needs --variant" in capsys.readouterr().err


def test_command_refuses_a_pilot_without_a_headline(tmp_path, capsys):
    study = made_study(tmp_path, sizes=3)
    assert main(["power", "--pilot", str(study.folder), "--variant", VARIANT]) == 2
    assert "is no pilot for full_attnres: refused: too few sizes" in capsys.readouterr().err
