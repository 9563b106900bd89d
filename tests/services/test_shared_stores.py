"""A sweep of eight cells side by side on PostgreSQL and on an MLflow server, which is lost for half a minute."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.history import METRICS_FILE, read_rows
from experiments.mirror import SERIES, params, points
from experiments.tracking import prepare_store, sync
from sweeps.grid import Cell, load_grid
from tests.experiments.mirrored import all_runs, client, contents, history
from tests.services.servers import Postgres, mlflow_server
from tests.sweeps.conftest import GRID_FILE

OUTAGE_SECONDS = 30.0
SIDE_BY_SIDE = 8
ARTEFACTS = {"spec.json", "record.json", "metrics.jsonl", "dynamics.parquet"}


class Study:
    """Eight cells of half a minute, all at work at once when the store goes away."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.runs, self.name = folder, folder / "runs", name
        self.grid = folder / f"{name}.py"
        self.grid.write_text(GRID_FILE.format(name=name, widths=(8, 12, 16, 20), tokens_per_param=150))
        self.cells: tuple[Cell, ...] = load_grid(str(self.grid)).cells
        assert len(self.cells) == SIDE_BY_SIDE
        self.folders = [self.runs / cell.spec.spec_id for cell in self.cells]

    def run(self, uri: str, stop: Callable[[], None], start: Callable[[], None]) -> None:
        """The sweep; ``stop`` is called once every cell is at work, ``start`` half a minute later."""
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeps", "run", self.grid, "--jobs", str(SIDE_BY_SIDE)],
            cwd=self.folder, env={**_environment(), "MLFLOW_TRACKING_URI": uri},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 300
            while len(self._told()) < SIDE_BY_SIDE:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            assert not list(self.runs.glob("*/record.json")), "in mid-run"
            stop()
            time.sleep(OUTAGE_SECONDS)
            start()
            output, _ = process.communicate(timeout=900)
        finally:
            process.kill()
        assert process.returncode == 0, output

    def _told(self) -> list[Path]:
        return [path for path in self.folders if (path / "mlflow_run_id").exists()]


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}


def check_complete(study: Study) -> None:
    """Every cell is one whole run: parameters, points, status, files."""
    runs = {run.data.tags["spec_id"]: run for run in all_runs(study.runs)}
    assert len(all_runs(study.runs)) == SIDE_BY_SIDE
    for cell, folder in zip(study.cells, study.folders, strict=True):
        run = runs[cell.spec.spec_id]
        assert run.info.status == "FINISHED"
        assert run.data.params == params(cell.spec)
        rows = read_rows(folder / METRICS_FILE)
        assert len(rows) == cell.spec.steps
        told, _ = points(rows, cell.spec)  # of the two longest every second step
        for key in SERIES:
            expected = [(point.step, point.value) for point in told if point.key == key]
            assert len(expected) > 500 or key == "val_loss"
            assert history(study.runs, run.info.run_id, key) == expected
        assert {item.path for item in client(study.runs).list_artifacts(run.info.run_id)} >= ARTEFACTS


def tables(study: Study) -> list[Any]:
    """What `contents` tells, without what a store makes up itself: ids, and its own moment of the start."""
    return [(spec_id, status, *rest) for spec_id, _, status, _, _, *rest in contents(study.runs)]


def check_rebuilt(study: Study, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sync` into an empty store gives what the live one holds, twice."""
    live = tables(study)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", empty)
    prepare_store(empty, study.runs)
    assert all_runs(study.runs) == []
    assert sync(study.folders, empty, study.name) == SIDE_BY_SIDE
    first, whole = tables(study), contents(study.runs)
    assert [row[:3] for row in first] == [row[:3] for row in live]
    assert [row[4:] for row in first] == [row[4:] for row in live]
    assert sync(study.folders, empty, study.name) == SIDE_BY_SIDE
    assert contents(study.runs) == whole


@pytest.mark.services
@pytest.mark.timeout(1500)
def test_m01_m04_postgresql_lost_for_half_a_minute(database_server: Postgres, tmp_path, monkeypatch):
    uri, empty = database_server.database("live"), database_server.database("rebuilt")
    study = Study(tmp_path, "on_postgresql")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    study.run(uri, database_server.stop, database_server.start)
    check_complete(study)
    assert not (tmp_path / "mlruns").exists(), "files of a database's runs lie beside the runs (case M05)"
    check_rebuilt(study, empty, monkeypatch)


@pytest.mark.services
@pytest.mark.timeout(1500)
def test_m01_m04_an_mlflow_server_lost_for_half_a_minute(database_server: Postgres, tmp_path, monkeypatch):
    study = Study(tmp_path, "on_a_server")
    with mlflow_server(tmp_path, database_server.database("served")) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        study.run(server.uri, server.stop, server.start)
        check_complete(study)
        check_rebuilt(study, f"sqlite:///{tmp_path}/rebuilt.db", monkeypatch)
