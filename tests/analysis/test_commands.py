"""python -m analysis: exit codes, one-line errors, the same bytes from the same table."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import commands
from analysis.commands import main
from analysis.dictionary import dictionary
from analysis.importing import NEEDED
from analysis.outlook import ASSUMED
from analysis.schema import MULTIPLIER_COLUMNS, RUN_COLUMNS
from tests.analysis.planted import ARMS, plan_throughput, planted_study
from tests.analysis.studies import VARIANT, made_study

ROOT = Path(__file__).resolve().parents[2]


def one(study, *more: str) -> list[str]:
    return ["multipliers", "--study", str(study.folder), "--variant", VARIANT, *more]


def test_one_number_is_printed(tmp_path, capsys):
    assert main(one(made_study(tmp_path))) == 0
    value = float(capsys.readouterr().out.split()[0])
    assert value == pytest.approx(1.25, abs=0.05)


@pytest.mark.parametrize("axis", ["exact", "6nd", "no_head", "tokens"])
@pytest.mark.parametrize("estimator", ["pair_slope", "joint", "fitted_curve", "pair_trend"])
def test_every_estimator_answers_on_every_axis(tmp_path, capsys, estimator, axis):
    assert main(one(made_study(tmp_path), "--estimator", estimator, "--compute-axis", axis)) == 0
    assert 1.1 < float(capsys.readouterr().out.split()[0]) < 1.4


def test_a_number_that_is_not_identifiable_exits_3(tmp_path, capsys):
    assert main(one(made_study(tmp_path, sizes=3))) == 3
    error = capsys.readouterr().err
    assert error == "error: refused: too few sizes: 3 with finished pairs (d2w64, d3w96, d4w128), 4 needed\n"


def test_a_table_with_refusals_is_done(tmp_path, capsys):
    study = made_study(tmp_path, sizes=3)
    assert main(["multipliers", "--study", str(study.folder)]) == 0
    assert "refused: too few sizes" in capsys.readouterr().out
    assert len(study.multipliers) > 20
    assert (
        study.multipliers["compute_multiplier"].isna() == (study.multipliers["verdict"] == "refused")
    ).all()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--estimator", "magic"), "unknown multiplier estimator 'magic': known are"),
        (("--compute-axis", "money"), "unknown compute axis 'money': known are exact"),
        (("--variant", "nothing"), "unknown arm 'nothing': known are additive"),
        (("--allow", "colour"), "--allow colour"),
    ],
)
def test_wrong_input_exits_2_with_one_line(tmp_path, capsys, more, words):
    assert main(one(made_study(tmp_path), *more)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["fits", "multipliers", "figures", "report", "table"])
def test_a_missing_study_is_named(tmp_path, capsys, command):
    assert main([command, "--study", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert "nowhere" in error and error.count("\n") == 1


def test_a_study_without_a_table_says_which_command_makes_it(tmp_path, capsys):
    planted_study(tmp_path, curves=False)
    (tmp_path / "runs.csv").unlink()
    assert main(["report", "--study", str(tmp_path)]) == 2
    assert "python -m analysis table --study" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("val_loss,", "loss,", 1), "no column val_loss"),
        (lambda text: text.replace(",finished,", ",finished", 1), "cells for"),
        (lambda _: "", "the file is empty"),
        (
            lambda text: text.replace("synthetic,0,0,1,2,64", "synthetic,0,0,1,two,64", 1),
            "depth is 'two', not a int",
        ),
    ],
)
def test_a_broken_table_is_named_with_its_line(tmp_path, capsys, change, words):
    path = made_study(tmp_path).folder / "runs.csv"
    path.write_text(change(path.read_text()))
    assert main(["multipliers", "--study", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert words in error and str(path) in error and error.count("\n") == 1


@pytest.mark.parametrize("loss", ["", "-1.5", "1.7976931348623157e+308", "0.0"])
def test_a_loss_that_cannot_be_one_is_named_with_its_run(tmp_path, capsys, loss):
    study = made_study(tmp_path)
    path, row = study.folder / "runs.csv", study.runs.iloc[4]
    path.write_text(path.read_text().replace(f",{float(row['val_loss'])!r},", f",{loss},", 1))
    assert main(["multipliers", "--study", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"run {row['spec_id']} is not excluded and has val_loss" in error and error.count("\n") == 1


def test_usage_errors_exit_2_and_help_exits_0():
    for arguments, code in (
        ([], 2),
        (["unheard"], 2),
        (["fits"], 2),
        (["--help"], 0),
        (["power", "--help"], 0),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "analysis", *arguments], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") == (1 if code else 0)


def test_an_interrupt_exits_130(tmp_path, monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_fits", interrupted)
    assert main(["fits", "--study", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted; the same command continues\n"


def test_a_read_only_folder_is_one_line(tmp_path, monkeypatch, capsys):
    """Root may write anywhere, so the refusal is made by hand where the file is opened."""
    study = made_study(tmp_path)

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied", str(tmp_path / "multipliers.csv"))

    monkeypatch.setattr("analysis.tabular.write_text", refuse)
    assert main(["multipliers", "--study", str(study.folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'multipliers.csv'}: Permission denied; ")
    assert error.count("\n") == 1


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_f16_plan_table_and_curves_alone_rebuild_every_file(tmp_path):
    """Also M06: the copy lies elsewhere, and every byte is the same."""
    first = planted_study(tmp_path / "a", sizes=5)
    plan_throughput(first, ARMS[1:], 0.9, 0.88, 0.92)
    assert main(["report", "--study", str(first)]) == 0
    assert ",wall," in (first / "multipliers.csv").read_text()
    second = tmp_path / "b" / "deeper"
    second.mkdir(parents=True)
    for name in ("plan.json", "runs.csv", "curves.parquet"):
        (second / name).write_bytes((first / name).read_bytes())
    assert main(["report", "--study", str(second)]) == 0
    here, there = digests(first), digests(second)
    assert here.keys() == there.keys()
    assert [name for name in here if here[name] != there[name]] == []


def test_the_dictionary_names_every_column(tmp_path):
    assert main(["dictionary", "--out", str(tmp_path / "README.md")]) == 0
    text = (tmp_path / "README.md").read_text()
    assert text == dictionary()
    for column in (*RUN_COLUMNS, *MULTIPLIER_COLUMNS):
        assert f"| {column.name} | {column.kind} |" in text
        assert column.meaning in text


def test_the_committed_dictionary_is_the_one_of_the_code():
    path = ROOT / "results" / "README.md"
    if not path.exists():
        pytest.skip("results/README.md is not written yet: python -m analysis dictionary")
    assert path.read_text() == dictionary()


def test_help_names_what_an_import_needs_and_what_a_plan_assumes(capsys):
    for command in ("import", "power"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(name in text for name in NEEDED)
    assumed = (ASSUMED.num_sizes, ASSUMED.num_seeds, ASSUMED.compute_range, ASSUMED.seed_sd)
    law = (ASSUMED.correlation, ASSUMED.lack_of_fit, ASSUMED.exponent, ASSUMED.irreducible, ASSUMED.loss)
    for value in (*assumed, *law):
        assert f"({value:g})" in text
