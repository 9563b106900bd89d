"""A store out of reach, late, failing in between: no run is stopped and nothing is lost."""

import time
from pathlib import Path

import pytest

from attnres.errors import UserError
from experiments import mirror, mlflow_store, tracking
from experiments.mlflow_store import MirroredRun
from experiments.record import RunStatus, write_record
from experiments.settings import Settings
from experiments.tracking import open_tracker, prepare_store, store_uri, sync
from tests.experiments.mirrored import (
    contents,
    history,
    make_dir,
    mirror_run,
    record_of,
    rows,
    series,
    write_rows,
)


def test_m04_a_store_out_of_reach_stops_nothing_and_sync_repairs_it(
    runs, spec_of, tmp_path, monkeypatch, caplog
):
    (tmp_path / "blocked").write_text("a file where the store's folder should be")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/blocked/mlflow.db")
    run_id, run_dir = mirror_run(spec_of(), runs, rows(1, 24), RunStatus.FINISHED)
    assert run_id == ""
    warnings = [entry for entry in caplog.records if entry.levelname == "WARNING"]
    assert len(warnings) == 1 and "sweeps sync" in warnings[0].getMessage()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sync([run_dir], store_uri(runs)) == 1
    first = contents(runs)
    assert sync([run_dir], store_uri(runs)) == 1
    assert contents(runs) == first
    assert history(runs, first[0][1], "train_loss") == series(1, 24)
    assert first[0][2] == "FINISHED"


def test_an_unreachable_server_costs_the_training_nothing(runs, spec_of, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    spec = spec_of()
    started = time.monotonic()
    tracker = open_tracker(spec, make_dir(spec, runs), Settings(runs=runs))
    for row in rows(1, 24):
        tracker.log(row)
    assert time.monotonic() - started < 0.2
    assert tracker.run_id == ""
    tracker.close(RunStatus.FINISHED)
    assert time.monotonic() - started < 5


def test_a_store_that_answers_too_late_is_left_behind(runs, spec_of, monkeypatch, caplog):
    for name in ("FIRST_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(tracking, name, 0.1)
    monkeypatch.setattr(tracking, "Store", lambda *_: time.sleep(1))
    spec = spec_of()
    tracker = open_tracker(spec, make_dir(spec, runs), Settings(runs=runs))
    started = time.monotonic()
    assert tracker.run_id == ""
    tracker.close(RunStatus.FINISHED)
    assert time.monotonic() - started < 0.9
    assert "did not answer in time" in caplog.text
    tracker._thread.join()


def test_an_outage_in_the_middle_leaves_no_gap(runs, spec_of, monkeypatch):
    """The store refuses some calls, also after having carried them out; every row is there once."""
    spec, failures = spec_of(), iter([True, False, True, True, False] + [False] * 1000)
    send = MirroredRun._send_points

    def unreliable(self: MirroredRun, points: list[mirror.Point]) -> None:
        before = dict(self._sent)
        send(self, points)
        if points and next(failures):
            self._sent = before
            raise ConnectionError("lost after the work was done")

    monkeypatch.setattr(MirroredRun, "_send_points", unreliable)
    run_dir = make_dir(spec, runs)
    tracker = tracking.MlflowTracker(spec, run_dir, Settings(runs=runs), store_uri(runs), flush_seconds=0.02)
    for row in rows(1, 24):
        tracker.log(row)
        time.sleep(0.02)
    write_rows(run_dir, rows(1, 24))
    write_record(run_dir, record_of(spec, RunStatus.FINISHED))
    time.sleep(0.5)
    tracker.close(RunStatus.FINISHED)
    assert history(runs, tracker.run_id, "train_loss") == series(1, 24)


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(UserError, match="the MLflow store cannot be opened") as caught:
        prepare_store(f"sqlite:///{tmp_path}/blocked/mlflow.db", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:////a/b/mlflow.db", "file:///a/b/mlflow_artefacts"),
        ("postgresql://me@host/x", "file:///c/runs/mlflow_artefacts"),
        ("http://host:5000", None),
        ("https://host", None),
    ],
)
def test_m05_where_a_store_keeps_files_does_not_hang_on_where_a_process_runs(uri, expected):
    assert mlflow_store._artefact_location(uri, Path("/c/runs")) == expected


@pytest.mark.parametrize(
    "uri",
    ["htp:/no such scheme", "sqlite:////proc/nowhere/x.db", "postgresql+nodriver://me:secret@nowhere/x"],
)
def test_a_malformed_uri_is_one_short_line_without_the_password(uri, tmp_path):
    with pytest.raises(
        UserError, match="the MLflow store cannot be opened .*check MLFLOW_TRACKING_URI"
    ) as caught:
        prepare_store(uri, tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert "secret" not in str(caught.value)


def test_a_malformed_uri_does_not_stop_a_run(runs, spec_of, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "htp:/me:secret@no such scheme")
    run_id, _ = mirror_run(spec_of(), runs, rows(1, 24), RunStatus.FINISHED)
    assert run_id == ""
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert len(warnings) == 1 and "is out of reach" in warnings[0] and "\n" not in warnings[0]
