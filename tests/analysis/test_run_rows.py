"""runs.csv at the border: whatever a hand or a bug did to it is one line that names the run."""

import pytest

from analysis.commands import main
from analysis.schema import EXCLUSION_COLUMNS, RUN_COLUMNS
from analysis.study import Study
from analysis.tabular import read_table, write_table
from attnres.errors import UserError
from tests.analysis.planted import planted_runs, planted_study
from tests.analysis.studies import made_study

COLUMNS = (*RUN_COLUMNS, *EXCLUSION_COLUMNS)


def changed(folder, **values):
    """A study whose fifth row holds ``values``."""
    study = made_study(folder)
    rows = study.runs.to_dict("records")
    rows[4].update(values)
    write_table(folder / "runs.csv", COLUMNS, rows)
    return rows[4]["spec_id"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"compute": 0.0}, "is not excluded and has compute 0.0, not a positive number"),
        ({"compute": None}, "is not excluded and has compute nan"),
        ({"compute": -1e12}, "has compute -1e+12, which cannot be negative"),
        ({"tokens": 0}, "is not excluded and has tokens 0"),
        ({"params_decoder": -5}, "has params_decoder -5, which cannot be negative"),
        ({"status": "abc"}, "has status 'abc', not finished, diverged"),
        ({"status": "failed"}, "is not excluded, and its status is failed"),
        ({"excluded": None}, "has no value of excluded"),
        ({"excluded": True}, "has excluded true beside reason none"),
        ({"exclusion_reason": "bored"}, "has exclusion_reason 'bored'"),
        ({"variant": "other"}, "has variant other; the plan says"),
        ({"seed": 77}, "has seed 77; the plan says"),
        ({"seed": None}, "has no seed"),
        ({"budget": None}, "is not excluded and has budget nan"),
        ({"lr": 0.5}, "has lr 0.5; the plan says"),
        ({"val_loss": None}, "is not excluded and has val_loss nan"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path, values, words):
    spec_id = changed(tmp_path, **values)
    with pytest.raises(UserError) as refused:
        _ = Study(tmp_path).runs
    message = str(refused.value)
    assert f"runs.csv: run {spec_id} " in message and words in message and "\n" not in message


def test_f_a_duplicated_row_is_named(tmp_path):
    rows = made_study(tmp_path).runs.to_dict("records")
    write_table(tmp_path / "runs.csv", COLUMNS, [*rows, rows[2]])
    with pytest.raises(UserError, match=f"run {rows[2]['spec_id']} stands twice"):
        _ = Study(tmp_path).runs


@pytest.mark.parametrize("command", ["fits", "multipliers", "report", "figures"])
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("runs.csv", b"\xff\xfe\x00garbage", "not a CSV file in UTF-8"),
        ("runs.csv", b"spec_id,spec_id\na,b\n", "a column stands twice"),
        ("plan.json", b"\xff\xfe{", "plan.json"),
        ("plan.json", b"[]", "plan.json"),
        ("plan.json", b"", "restore the file, or delete it"),
        ("runs.csv", b"", "make it again: python -m analysis table"),
        ("runs.csv", b"spec_id,depth\n", "and "),
        ("curves.parquet", b"garbage", "cannot be read as parquet"),
        ("curves.parquet", None, "cannot be read as parquet (not a file)"),
    ],
)
def test_garbage_in_a_file_is_one_line(tmp_path, capsys, command, name, content, words):
    made_study(tmp_path)
    if content is None:
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    code = main([command, "--study", str(tmp_path)])
    captured = capsys.readouterr()
    if name == "curves.parquet" and command in ("fits", "multipliers"):
        assert code == 0
        return
    assert code == 2
    assert captured.err.count("\n") == 1 and words in captured.err and name in captured.err


def test_a_mistyped_runs_folder_leaves_the_table_alone(tmp_path, capsys):
    study = tmp_path / "study"
    planted_runs(study, tmp_path / "runs", sizes=4)
    assert main(["table", "--study", str(study), "--runs", str(tmp_path / "runs")]) == 0
    before = (study / "runs.csv").read_bytes()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    capsys.readouterr()
    for name, words in (
        ("mistyped", "no such folder of run directories"),
        ("file", "no such folder of run directories"),
        ("empty", "finished runs are not in"),
    ):
        assert main(["table", "--study", str(study), "--runs", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
        assert (study / "runs.csv").read_bytes() == before
    (study / "runs.csv").unlink()
    assert main(["table", "--study", str(study), "--runs", str(tmp_path / "empty")]) == 0
    missing = read_table(study / "runs.csv", COLUMNS, required=False)
    assert set(missing["status"]) == {"missing"}


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_point_that_is_not_finite_is_empty_in_every_column(tmp_path, value):
    study = tmp_path / "study"
    planted_runs(study, tmp_path / "runs", sizes=4)
    path = next((tmp_path / "runs").glob("*/metrics.jsonl"))
    path.write_text(f'{{"step": 1, "tokens": {value}, "train_loss": {value}}}\n' + path.read_text())
    assert main(["table", "--study", str(study), "--runs", str(tmp_path / "runs")]) == 0
    assert main(["figures", "--study", str(study)]) == 0


def test_figures_says_what_it_drew_and_what_not(tmp_path, capsys):
    made_study(tmp_path)
    assert main(["figures", "--study", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "not drawn: held_out (needs fits/holdout.json)" in told
    assert "figures: " in told and " drawn (" in told


@pytest.mark.parametrize("content", [b"\xff\xfe\x00garbage", b"", b'[{"a": 1'])
def test_a_damaged_fit_file_is_one_line(tmp_path, capsys, content):
    planted_study(tmp_path, sizes=5)
    assert main(["report", "--study", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "fits" / "pairs.json").write_bytes(content)
    assert main(["figures", "--study", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert (
        error.count("\n") == 1 and "pairs.json: damaged (" in error and "python -m analysis report" in error
    )
