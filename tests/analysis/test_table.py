"""runs/ -> runs.csv, curves.parquet: whole, counted, byte-stable, broken input named."""

import json
import shutil
import time

import pandas as pd
import pytest

from analysis.commands import main
from analysis.counts import count_runs
from analysis.schema import EXCLUSION_COLUMNS, RUN_COLUMNS, column_names
from analysis.study import Study
from analysis.table import build_table
from attnres.errors import UserError
from tests.analysis.planted import planted_runs

OPTIONS = {"sizes": 3, "seeds": 1, "arms": ("additive", "full_attnres")}


@pytest.fixture
def made(tmp_path):
    """(study folder, runs root, planted study)."""
    folder, root = tmp_path / "results" / "planted", tmp_path / "runs"
    return folder, root, planted_runs(folder, root, **OPTIONS)


def change(root, run, **changes):
    path = root / run / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_every_planned_run_is_a_row_with_all_columns(made):
    folder, root, planted = made
    summary = build_table(folder, root)
    assert summary.complete
    assert summary.line() == "6 planned: 6 finished"
    table = Study(folder).runs
    assert list(table.columns) == column_names((*RUN_COLUMNS, *EXCLUSION_COLUMNS))
    assert list(table["spec_id"]) == [cell.spec_id for cell in planted.plan.cells]
    for row, made_row in zip(table.to_dict("records"), planted.rows, strict=True):
        for name in ("val_loss", "compute", "tokens", "lr", "variant", "tied", "compile"):
            assert row[name] == made_row[name]


def test_the_same_runs_give_the_same_bytes(made):
    folder, root, _ = made
    build_table(folder, root)
    first = [(folder / name).read_bytes() for name in ("runs.csv", "curves.parquet")]
    build_table(folder, root)
    assert first == [(folder / name).read_bytes() for name in ("runs.csv", "curves.parquet")]


def test_m06_moved_results_give_the_same_bytes(made, tmp_path):
    folder, root, _ = made
    build_table(folder, root)
    before = (folder / "runs.csv").read_bytes()
    shutil.move(str(tmp_path / "results"), str(tmp_path / "elsewhere"))
    shutil.move(str(root), str(tmp_path / "other_runs"))
    moved = tmp_path / "elsewhere" / "planted"
    build_table(moved, tmp_path / "other_runs")
    assert (moved / "runs.csv").read_bytes() == before


def test_w03_one_failed_cell_leaves_the_others(made, capsys):
    folder, root, planted = made
    change(root, planted.rows[2]["spec_id"], status="failed", val_loss=None, failed_at_step=12)
    assert main(["table", "--study", str(folder), "--runs", str(root)]) == 0
    assert "6 planned: 5 finished, 1 failed" in capsys.readouterr().out
    assert main(["table", "--study", str(folder), "--runs", str(root), "--strict"]) == 1
    table = Study(folder).runs
    assert list(table["exclusion_reason"]) == ["none", "none", "incomplete", "none", "none", "none"]


def test_w12_missing_and_stray_runs_are_counted(made):
    folder, root, planted = made
    gone, copied = planted.rows[0]["spec_id"], planted.rows[1]["spec_id"]
    shutil.copytree(root / copied, root / "stray0000000")
    change(root, "stray0000000", spec_id="stray0000000")
    shutil.rmtree(root / gone)
    summary = build_table(folder, root)
    assert summary.line() == "6 planned: 5 finished, 1 missing; 1 not in plan"
    assert not summary.complete
    study = Study(folder)
    counts = count_runs(study)
    assert (counts["missing"], counts["not_in_plan"], counts["finished"]) == (1, 1, 5)
    assert counts["stray"] == ["stray0000000"]
    assert {row["reason"] for row in counts["excluded"]} == {"incomplete", "off_grid"}
    assert "stray0000000" not in set(study.cells["spec_id"])


def test_runs_of_a_study_beside_this_one_are_not_stray(made, tmp_path):
    folder, root, _ = made
    other = tmp_path / "results" / "other"
    planted_runs(other, tmp_path / "more", sizes=1, seeds=1, arms=("additive", "a", "b", "c"))
    for run in (tmp_path / "more").iterdir():
        if not (root / run.name).exists():
            shutil.copytree(run, root / run.name)
    assert build_table(folder, root).stray == ()


def test_m11_infinite_losses_are_no_numbers(made):
    folder, root, planted = made
    spec_id = planted.rows[3]["spec_id"]
    path = root / spec_id / "record.json"
    record = json.loads(path.read_text()) | {"status": "diverged", "failed_at_step": 10, "val_loss": None}
    path.write_text(json.dumps(record | {"train_loss": float("inf")}))
    with open(root / spec_id / "metrics.jsonl", "a") as handle:
        handle.write('{"step": 9999, "tokens": 5, "train_loss": Infinity}\n')
        handle.write('{"step": 10000, "tokens": 6, "train_loss": 1.7976931348623157e308, "grad_norm": NaN}\n')
    build_table(folder, root)
    assert "inf" not in (folder / "runs.csv").read_text().lower()
    row = Study(folder).runs.set_index("spec_id").loc[spec_id]
    assert (row["status"], row["failed_at_step"], row["exclusion_reason"]) == ("diverged", 10, "diverged")
    assert pd.isna(row["train_loss"])
    curves = Study(folder).curves
    last = curves[(curves["spec_id"] == spec_id) & (curves["step"] >= 9999)]
    assert last["train_loss"].isna().all()
    assert curves["train_loss"].max() < 100


def test_curves_hold_each_step_once_and_merge_its_lines(made):
    folder, root, planted = made
    spec_id = planted.rows[0]["spec_id"]
    (root / spec_id / "metrics.jsonl").write_text(
        '{"step": 1, "tokens": 10, "train_loss": 3.0, "lr": 0.1, "seconds": 1.0}\n'
        '{"step": 2, "tokens": 20, "train_loss": 2.9, "lr": 0.1, "seconds": 2.0}\n'
        '{"step": 2, "val_loss": 2.8}\n'
        '{"step": 2, "tokens": 20, "train_loss": 2.7, "lr": 0.1, "seconds": 5.0}\n'
        '{"step": 3, "tok'
    )
    build_table(folder, root)
    own = Study(folder).curves
    own = own[own["spec_id"] == spec_id]
    assert list(own["step"]) == [1, 2]
    last = own.iloc[1]
    assert (last["train_loss"], last["val_loss"], last["seconds"]) == (2.7, 2.8, 5.0)


def test_s09_a_run_short_of_its_tokens_is_incomplete(made):
    folder, root, planted = made
    row = planted.rows[4]
    tokens = row["tokens"] // 2 // row["batch_tokens"] * row["batch_tokens"]
    per_token = row["compute"] / row["tokens"]
    change(
        root, row["spec_id"], tokens=tokens, compute=per_token * tokens, steps=tokens // row["batch_tokens"]
    )
    build_table(folder, root)
    found = Study(folder).runs.set_index("spec_id").loc[row["spec_id"]]
    assert found["exclusion_reason"] == "incomplete"


BROKEN = {
    "not JSON": ("{", "not JSON"),
    "a list": ("[]", "not a record but a list"),
    "no loss": ({"drop": "val_loss"}, "no val_loss"),
    "a word for a number": ({"width": "wide"}, "width is 'wide', not a int"),
    "a number for a word": ({"device": 3}, "device is 3, not a str"),
    "a bool for a number": ({"seed": True}, "seed is True, not a int"),
    "another schema": ({"schema_version": 1}, "schema_version 1"),
    "finished without a loss": ({"val_loss": None}, "finished with val_loss None"),
    "negative loss": ({"val_loss": -1.0}, "finished with val_loss -1.0"),
    "compute that does not add up": ({"compute": 1.0}, "is not the sum of its parts"),
    "an unknown status": ({"status": "done"}, "status 'done'"),
    "another run's": ({"seed": 77}, "seed is 77, the plan says 0"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_record_is_named_in_one_line(made, capsys, case):
    folder, root, planted = made
    broken, words = BROKEN[case]
    path = root / planted.rows[0]["spec_id"] / "record.json"
    if isinstance(broken, str):
        path.write_text(broken)
    else:
        record = json.loads(path.read_text())
        record.pop(broken.pop("drop", None), None)
        path.write_text(json.dumps(record | broken))
    assert main(["table", "--study", str(folder), "--runs", str(root)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and words in error
    assert error.count("\n") == 1
    assert not (folder / "runs.csv").exists()


def test_a_folder_without_a_plan_is_named(tmp_path):
    tmp_path.joinpath("s").mkdir()
    with pytest.raises(UserError, match=r"plan\.json: no such file"):
        build_table(tmp_path / "s", tmp_path)


def test_a_table_of_many_runs_is_quick(tmp_path):
    folder, root = tmp_path / "results" / "many", tmp_path / "runs"
    planted_runs(folder, root, sizes=10, seeds=10, arms=("additive", "a", "b"))
    start = time.perf_counter()
    assert build_table(folder, root).planned == 300
    assert time.perf_counter() - start < 10


def test_every_record_column_is_in_the_contract():
    """Held to experiments.record without importing torch: fields are read from its source."""
    record = pytest.importorskip("experiments.record")
    assert set(record.RunRecord.model_fields) == set(column_names(RUN_COLUMNS))
