"""Many runs and long histories are read whole: a store's pages and samples cut them without a word."""

import json

import pyarrow.parquet as pq

from analysis.curves import write_curves
from analysis.study import Study
from analysis.table import build_table
from tests.analysis.planted import planted_runs


def test_m14_more_runs_than_a_page_of_a_store_are_all_rows(tmp_path):
    folder, root = tmp_path / "results" / "planted", tmp_path / "runs"
    planted_runs(folder, root, sizes=3, seeds=201, arms=("additive", "full_attnres"), curves=False)
    assert build_table(folder, root).line() == "1206 planned: 1206 finished"
    assert Study(folder).runs["spec_id"].nunique() == 1206


def test_m15_a_history_of_thirty_thousand_points_is_whole_to_the_last(tmp_path):
    run = tmp_path / "runs" / "0123456789ab"
    run.mkdir(parents=True)
    lines = (
        json.dumps(
            {"step": step, "tokens": step * 512, "train_loss": 4.0 - step / 1e5, "seconds": 0.1 * step}
        )
        for step in range(1, 30_002)
    )
    (run / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    write_curves(tmp_path / "curves.parquet", tmp_path / "runs", [run.name])
    table = pq.read_table(tmp_path / "curves.parquet").to_pylist()
    assert [row["step"] for row in table] == list(range(1, 30_002))
    assert table[-1]["train_loss"] == 4.0 - 30_001 / 1e5
