"""The MLflow mirror: one run per spec, one value per step, truthful states, and never in the way."""

import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from experiments import mirror, tracking
from experiments.mlflow_store import Store
from experiments.record import RunStatus, write_record
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.tracking import open_tracker, store_uri, sync
from tests.experiments.mirrored import (
    all_runs,
    client,
    finish_dir,
    history,
    killed_run,
    make_dir,
    mirror_run,
    record_of,
    rows,
    series,
    write_rows,
)


def test_a_finished_run_is_mirrored_whole(runs, spec_of):
    run_id, run_dir = mirror_run(spec_of(), runs, rows(1, 24), RunStatus.FINISHED, grid="demo")
    run = client(runs).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert (run_dir / "mlflow_run_id").read_text().strip() == run_id
    assert history(runs, run_id, "train_loss") == series(1, 24)
    assert [step for step, _ in history(runs, run_id, "val_loss")] == [6, 12, 18, 24]
    assert run.data.params["lr"] == "0.01" and run.data.params["depth"] == "2"
    assert run.data.tags["grid"] == "demo" and run.data.tags["status"] == "finished"
    assert {"spec_id", "pair_id", "variant", "git_sha"} <= set(run.data.tags)
    names = {item.path for item in client(runs).list_artifacts(run_id)}
    assert names == {"spec.json", "record.json", "metrics.jsonl"}
    assert run.data.metrics["val_bits_per_byte"] == 5.8


def test_rows_reach_the_store_while_the_run_goes_on(runs, spec_of):
    spec = spec_of()
    tracker = tracking.MlflowTracker(
        spec, make_dir(spec, runs), Settings(runs=runs), store_uri(runs), flush_seconds=0.05
    )
    assert tracker.run_id
    for row in rows(1, 5):
        tracker.log(row)
    deadline = time.monotonic() + 20
    while len(history(runs, tracker.run_id, "train_loss")) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert client(runs).get_run(tracker.run_id).info.status == "RUNNING"
    tracker.close(RunStatus.INTERRUPTED)


def test_a_deleted_experiment_is_restored(runs, spec_of):
    store = Store(store_uri(runs), runs)
    store.client.delete_experiment(store.experiment_id)
    assert mirror_run(spec_of(), runs, rows(1, 24), RunStatus.FINISHED)[0]
    assert len(all_runs(runs)) == 1


@pytest.mark.parametrize(
    ("status", "told"),
    [("finished", "FINISHED"), ("failed", "FAILED"), ("diverged", "FAILED"), ("interrupted", "KILLED")],
)
def test_m08_states_are_truthful_and_m09_written_once(runs, spec_of, status, told):
    run_id, run_dir = mirror_run(spec_of(), runs, rows(1, 12), RunStatus(status))
    before = client(runs).get_run(run_id).info
    assert before.status == told
    time.sleep(0.01)
    sync([run_dir], store_uri(runs))
    after = client(runs).get_run(run_id).info
    assert (after.status, after.end_time) == (before.status, before.end_time)


def test_m11_m12_what_is_not_a_number_is_noted_and_kept_out_of_the_series(runs, spec_of):
    told = rows(1, 10)
    told[8]["grad_norm"] = None
    told[9]["train_loss"] = float("inf")
    told[9]["val_loss"] = float("nan")
    spec = spec_of()
    run_dir = make_dir(spec, runs)
    tracker = open_tracker(spec, run_dir, Settings(runs=runs))
    for row in told:
        tracker.log(row)
    run_id = tracker.run_id
    told[9].update(train_loss=None, val_loss=None)  # as metrics.jsonl has it
    write_rows(run_dir, told)
    write_record(run_dir, record_of(spec, RunStatus.DIVERGED, failed_at_step=10))
    tracker.close(RunStatus.DIVERGED)
    run = client(runs).get_run(run_id)
    assert run.info.status == "FAILED" and run.data.tags["failed_at_step"] == "10"
    assert run.data.tags["not_finite.train_loss"] == "first at step 10"
    assert run.data.tags["not_finite.grad_norm"] == "first at step 9"
    assert history(runs, run_id, "train_loss") == series(1, 9)
    assert len(history(runs, run_id, "grad_norm")) == 9  # 1 .. 8 and 10
    with sqlite3.connect(runs / "mlflow.db") as database:
        assert database.execute(
            "SELECT count(*) FROM metrics WHERE is_nan OR abs(value) > 1e300"
        ).fetchone() == (0,)
    assert {"record.json", "metrics.jsonl"} <= {item.path for item in client(runs).list_artifacts(run_id)}


def test_m16_steps_done_again_are_there_once(runs, spec_of):
    spec = spec_of()
    killed_run(spec, runs, 17)
    write_rows(runs / spec.spec_id, rows(1, 10))  # what survives a checkpoint at step 10
    run_id, run_dir = mirror_run(spec, runs, rows(11, 24, slow=1.3), RunStatus.FINISHED)
    assert history(runs, run_id, "train_loss") == series(1, 24)
    assert [run.info.run_id for run in all_runs(runs)] == [run_id]
    assert sync([run_dir], store_uri(runs)) == 1
    assert history(runs, run_id, "train_loss") == series(1, 24)


def test_m16_where_numbers_differ_the_surviving_trajectory_is_kept(runs, spec_of):
    spec = spec_of()
    killed_run(spec, runs, 17)
    write_rows(runs / spec.spec_id, rows(1, 10))
    mirror_run(spec, runs, rows(11, 24, shift=1e-7), RunStatus.FINISHED)
    (run,) = all_runs(runs)
    assert history(runs, run.info.run_id, "train_loss") == series(1, 10) + series(11, 24, shift=1e-7)
    assert (runs / spec.spec_id / "mlflow_run_id").read_text().strip() == run.info.run_id


def test_m16_a_run_that_now_ends_earlier_leaves_no_later_steps(runs, spec_of):
    spec = spec_of()
    mirror_run(spec, runs, rows(1, 17), RunStatus.FAILED)
    shutil.rmtree(runs / spec.spec_id)
    run_dir = finish_dir(spec, runs, RunStatus.DIVERGED, last=12)
    sync([run_dir], store_uri(runs))
    (run,) = all_runs(runs)
    assert history(runs, run.info.run_id, "train_loss") == series(1, 12)


def test_m17_one_run_per_cell_across_restarts_and_lost_files(runs, spec_of):
    spec, namesake = spec_of(data_seed=1), spec_of(data_seed=2)
    assert mirror.title(spec) == mirror.title(namesake)
    ids = set()
    for first, last in ((1, 5), (6, 11), (12, 18), (19, 24)):
        status = RunStatus.FINISHED if last == 24 else RunStatus.INTERRUPTED
        ids.add(mirror_run(spec, runs, rows(first, last), status)[0])
        (runs / spec.spec_id / "mlflow_run_id").unlink()  # found again by its tag
    mirror_run(namesake, runs, rows(1, 24), RunStatus.FINISHED)
    assert len(ids) == 1
    assert len(all_runs(runs)) == 2
    assert history(runs, ids.pop(), "train_loss") == series(1, 24)


def test_m18_operational_drift_is_noted_and_a_second_grid_is_added(runs, spec_of):
    mirror_run(spec_of(), runs, rows(1, 5), RunStatus.INTERRUPTED, threads=1, grid="demo")
    run_id, _ = mirror_run(spec_of(), runs, rows(6, 9), RunStatus.INTERRUPTED, threads=2, grid="study")
    run_id, _ = mirror_run(spec_of(), runs, rows(10, 24), RunStatus.FINISHED, threads=4, grid="demo")
    tags = client(runs).get_run(run_id).data.tags
    assert tags["drift"] == "threads: 1 -> 2; threads: 2 -> 4"
    assert tags["grid"] == "demo,study"


def test_m19_a_long_value_is_whole_in_the_stored_spec(runs, spec_of, tmp_path):
    spec = spec_of(recipe="x" * 10_000)
    run_id, run_dir = mirror_run(spec, runs, rows(1, 24), RunStatus.FINISHED)
    stored = client(runs).download_artifacts(run_id, "spec.json", str(tmp_path))
    assert Path(stored).read_bytes() == (run_dir / "spec.json").read_bytes()
    assert RunSpec.model_validate_json(Path(stored).read_text()).spec_id == spec.spec_id
    assert client(runs).get_run(run_id).data.params["recipe"] == "x" * 249 + "…"


def test_m22_a_row_told_twice_is_there_once(runs, spec_of):
    run_id, _ = mirror_run(spec_of(), runs, rows(1, 24) + rows(24, 24), RunStatus.FINISHED)
    assert history(runs, run_id, "train_loss") == series(1, 24)


def test_no_tracking_means_no_store(tmp_path, spec_of):
    spec = spec_of()
    tracker = open_tracker(spec, make_dir(spec, tmp_path), Settings(runs=tmp_path, tracking=False))
    tracker.log(rows(1, 1)[0])
    tracker.close(RunStatus.FINISHED)
    assert tracker.run_id == "" and {path.name for path in tmp_path.iterdir()} == {spec.spec_id}


def test_no_request_leaves_the_machine_and_nothing_is_printed(first_use):
    work, _, done = first_use
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(work.iterdir()) == [], "no mlruns folder where the process ran"
