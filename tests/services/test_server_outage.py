"""One run told to an MLflow server that goes away in the middle and comes back."""

import time

import pytest

from experiments import tracking
from experiments.record import RunStatus, write_record
from experiments.settings import Settings
from experiments.tracking import sync
from tests.experiments.conftest import make_spec
from tests.experiments.mirrored import (
    all_runs,
    client,
    contents,
    history,
    make_dir,
    record_of,
    rows,
    series,
    write_rows,
)
from tests.services.servers import mlflow_server


@pytest.mark.services
def test_m04_a_server_that_goes_away_in_the_middle_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "FIRST_SECONDS", 120.0)  # importing MLflow takes long on a busy machine
    runs, spec = tmp_path / "runs", make_spec()
    runs.mkdir()
    run_dir = make_dir(spec, runs)
    with mlflow_server(tmp_path, f"sqlite:///{tmp_path}/server.db") as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        tracker = tracking.MlflowTracker(spec, run_dir, Settings(runs=runs), server.uri, flush_seconds=0.2)
        run_id = tracker.run_id
        assert run_id
        for row in rows(1, 10):
            tracker.log(row)
        time.sleep(2)
        server.stop()
        for row in rows(11, 20):
            tracker.log(row)
        time.sleep(2)
        server.start()
        for row in rows(21, 24):
            tracker.log(row)
        write_rows(run_dir, rows(1, 24))
        write_record(run_dir, record_of(spec, RunStatus.FINISHED))
        tracker.close(RunStatus.FINISHED)
        assert history(runs, run_id, "train_loss") == series(1, 24)
        assert [run.info.status for run in all_runs(runs)] == ["FINISHED"]
        assert {"spec.json", "record.json"} <= {item.path for item in client(runs).list_artifacts(run_id)}
        before = contents(runs)
        assert sync([run_dir], server.uri) == 1
        assert contents(runs) == before
