"""The MLflow mirror: one run per spec, one value per step, truthful states, and never in the way."""

import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from attnres.errors import UserError
from experiments import mirror, mlflow_store, tracking
from experiments.mlflow_store import MirroredRun, Store
from experiments.record import RunRecord, RunStatus, write_record
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.tracking import NoTracker, open_tracker, prepare_store, store_uri, sync

FORK = multiprocessing.get_context("fork")
"""Children share the parent's imports: MLflow alone takes two seconds to import."""


FIRST_USE = """
import shutil, socket, sys, time
from pathlib import Path
seen = []
connect = socket.socket.connect
socket.socket.connect = lambda self, address: (seen.append(address), connect(self, address))[1]
socket.getaddrinfo = lambda *address, **_: (seen.append(address), [])[1]
from experiments.tracking import prepare_store, store_uri, sync
runs, run_dir, empty = map(Path, sys.argv[1:])
prepare_store(store_uri(runs))
shutil.copy(runs / "mlflow.db", empty)
assert sync([run_dir], store_uri(runs)) == 1
from mlflow.telemetry import get_telemetry_client
from mlflow.telemetry.utils import is_telemetry_disabled
assert is_telemetry_disabled() and get_telemetry_client() is None
time.sleep(0.5)
assert not seen, seen
"""


@pytest.fixture(scope="session")
def first_use(tmp_path_factory, spec_of) -> tuple[Path, Path, subprocess.CompletedProcess[str]]:
    """A store created and used in a process that nothing marks as a test, with every connection noted.

    Returns its folder, a copy of it from when it was empty (creation takes seconds, a copy nothing),
    and what became of the process.
    """
    folder, work = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("work")
    empty = tmp_path_factory.mktemp("empty") / "mlflow.db"
    run_dir = finish_dir(spec_of(), folder)
    marks = ("CI", "PYTEST_CURRENT_TEST", "GITHUB_ACTIONS", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK")
    environment = {
        key: value for key, value in os.environ.items() if key not in (*marks, "MLFLOW_TRACKING_URI")
    }
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE, folder, run_dir, empty],
        capture_output=True, text=True, cwd=work, env=environment,
    )  # fmt: skip
    return work, empty, done


@pytest.fixture(scope="session")
def template(first_use) -> Path:
    """An empty store to copy."""
    return first_use[1]


@pytest.fixture
def runs(tmp_path, template, monkeypatch) -> Path:
    """A folder of runs with an empty store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(template, runs / "mlflow.db")
    with sqlite3.connect(runs / "mlflow.db") as database:
        database.execute("UPDATE experiments SET artifact_location = ?", [f"file://{runs}/mlflow_artefacts"])
    return runs


def rows(first: int, last: int, *, shift: float = 0.0, slow: float = 1.0) -> list[dict[str, Any]]:
    return [
        {"step": step, "tokens": step * 512, "train_loss": 4.0 - step / 100 + shift, "lr": 0.1, "grad_norm": 1.5,
         **({"val_loss": 4.0 + shift} if step % 6 == 0 else {}), "seconds": slow * step / 10}
        for step in range(first, last + 1)
    ]  # fmt: skip


def write_rows(run_dir: Path, content: list[dict[str, Any]]) -> None:
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))


def make_dir(spec: RunSpec, runs: Path) -> Path:
    run_dir = runs / spec.spec_id
    run_dir.mkdir(exist_ok=True)
    (run_dir / "spec.json").write_text(
        json.dumps(spec.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
    )
    return run_dir


def record_of(spec: RunSpec, status: RunStatus, **changes: Any) -> RunRecord:
    finished = status is RunStatus.FINISHED
    fields = {
        "spec_id": spec.spec_id, "run_id": "", "parent_id": "", "stream": spec.stream.name,
        "variant": spec.stream.variant, "stream_options": "{}", "dataset": spec.dataset, "seed": spec.seed,
        "data_seed": spec.data_seed, "numerics": spec.numerics, **spec.shape.model_dump(),
        "params_embedding": 1, "params_decoder": 1, "params_stream": 0, "params_head": 1,
        "flops_per_token_matmul": 1.0, "flops_per_token_attention": 1.0, "flops_per_token_head": 1.0,
        "flops_per_token_stream": 0.0, "budget": spec.budget, "tokens": spec.tokens, "compute": 3.0 * spec.tokens,
        "batch_tokens": 512, "steps": spec.steps, "lr": 0.1, "warmup": 3, "schedule": "cosine",
        "weight_decay": 0.1, "recipe": spec.train.recipe, "data_passes": 1.0,
        "val_loss": 4.0 if finished else None, "val_loss_se": 0.1 if finished else None, "val_tokens": 1000,
        "val_bits_per_byte": 5.8 if finished else None, "train_loss": 3.9, "status": status,
        "failed_at_step": None, "attempts": 1, "wall_seconds": 2.4, "tokens_per_second": 1000.0,
        "peak_memory_bytes": 10**6, "device": "cpu", "precision": "fp32", "threads": 1, "compile": False,
        "torch_version": "2", "git_sha": "abc", "started_at": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    return RunRecord(**{**fields, **changes})


def finish_dir(spec: RunSpec, runs: Path, status: RunStatus = RunStatus.FINISHED, last: int = 24) -> Path:
    run_dir = make_dir(spec, runs)
    write_rows(run_dir, rows(1, last))
    write_record(run_dir, record_of(spec, status))
    return run_dir


def mirror_run(
    spec: RunSpec, runs: Path, told: list[dict[str, Any]], status: RunStatus, **settings: Any
) -> tuple[str, Path]:
    """A run as `experiments.run` does it: told row by row, the record, the end."""
    run_dir = make_dir(spec, runs)
    tracker = open_tracker(spec, run_dir, Settings(runs=runs, **settings))
    for row in told:
        tracker.log(row)
    run_id = tracker.run_id
    earlier = [row for row in _old_rows(run_dir) if not told or row["step"] < told[0]["step"]]
    write_rows(run_dir, earlier + told)
    write_record(run_dir, record_of(spec, status))
    tracker.close(status)
    return run_id, run_dir


def _old_rows(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def client(runs: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store_uri(runs))


def all_runs(runs: Path) -> list[Any]:
    experiment = client(runs).get_experiment_by_name(mlflow_store.EXPERIMENT)
    return client(runs).search_runs([experiment.experiment_id], max_results=1000)


def history(runs: Path, run_id: str, key: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client(runs).get_metric_history(run_id, key)]


def contents(runs: Path) -> list[Any]:
    """Everything a person can see in the store."""
    return sorted(
        (run.data.tags["spec_id"], run.info.run_id, run.info.status, run.info.start_time, run.info.end_time,
         run.data.params, run.data.tags, sorted((key, history(runs, run.info.run_id, key)) for key in run.data.metrics),
         sorted(item.path for item in client(runs).list_artifacts(run.info.run_id)))
        for run in all_runs(runs)
    )  # fmt: skip


def series(first: int, last: int, shift: float = 0.0) -> list[tuple[int, float]]:
    return [(row["step"], row["train_loss"]) for row in rows(first, last, shift=shift)]


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


def in_children(work: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
    children = [FORK.Process(target=work, args=each) for each in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * len(children)


def whole_run(spec: RunSpec, runs: Path) -> None:
    run_id, _ = mirror_run(spec, runs, rows(1, 24), RunStatus.FINISHED)
    assert run_id


def test_m01_eight_cells_at_once_on_an_empty_directory(tmp_path, spec_of, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    in_children(whole_run, [(spec_of(seed=seed), tmp_path) for seed in range(8)])
    assert [run.info.status for run in all_runs(tmp_path)] == ["FINISHED"] * 8
    for run in all_runs(tmp_path):
        assert history(tmp_path, run.info.run_id, "train_loss") == series(1, 24)


def write_500_times(spec: RunSpec, runs: Path) -> None:
    run = MirroredRun(Store(store_uri(runs)), spec, make_dir(spec, runs), Settings(runs=runs))
    for start in range(1, 501, 25):
        run.send(rows(start, start + 24))


def test_m03_eight_writers_and_a_reader_lose_nothing(runs, spec_of):
    specs = [spec_of(seed=seed, tokens=500 * 512) for seed in range(8)]
    writers = [FORK.Process(target=write_500_times, args=(spec, runs)) for spec in specs]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        all_runs(runs)
        time.sleep(0.02)
    assert [writer.exitcode for writer in writers] == [0] * 8
    counts = [len(history(runs, run.info.run_id, "train_loss")) for run in all_runs(runs)]
    assert counts == [500] * 8


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
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(tracking, "Store", lambda _: time.sleep(1))
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


def test_an_experiment_made_by_another_process_in_between_is_used(runs, monkeypatch):
    store = Store(store_uri(runs))
    look_up = type(store.client).get_experiment_by_name
    answers = iter([None])
    monkeypatch.setattr(
        type(store.client), "get_experiment_by_name", lambda self, name: next(answers, look_up(self, name))
    )
    assert Store(store_uri(runs)).experiment_id == store.experiment_id


def test_a_deleted_experiment_is_restored(runs, spec_of):
    store = Store(store_uri(runs))
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


def killed_run(spec: RunSpec, runs: Path, last: int) -> None:
    """What a SIGKILL leaves: rows in the directory and in the store, and nobody who says that it ended."""
    run = MirroredRun(Store(store_uri(runs)), spec, make_dir(spec, runs), Settings(runs=runs))
    run.resume()
    run.send(rows(1, last))
    write_rows(runs / spec.spec_id, rows(1, last))


def test_m07_a_killed_run_is_told_apart_from_a_running_one(runs, spec_of):
    spec = spec_of()
    killed_run(spec, runs, 9)
    assert all_runs(runs)[0].info.status == "RUNNING", "as MLflow alone would leave it for ever"
    with FileLock(runs / spec.spec_id / "lock"):
        assert sync([runs / spec.spec_id], store_uri(runs)) == 1
        assert all_runs(runs)[0].info.status == "RUNNING", "a living process holds the lock"
    sync([runs / spec.spec_id], store_uri(runs))
    assert [run.info.status for run in all_runs(runs)] == ["KILLED"]


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


def test_m20_equal_specs_have_equal_parameters(spec_of):
    assert mirror.params(spec_of()) == mirror.params(RunSpec.model_validate_json(spec_of().canonical_json()))
    assert all(" at 0x" not in value for value in mirror.params(spec_of()).values())
    assert mirror.params(spec_of()) != mirror.params(spec_of(lr=0.02))


def test_m21_few_keys_and_no_endless_series(spec_of):
    spec = spec_of(tokens=100_000 * 512)
    points, _ = mirror.points(rows(1, 100_000), spec)
    steps = {key: [p.step for p in points if p.key == key] for key in mirror.SERIES}
    assert len(mirror.SERIES) + len(mirror.SUMMARY) < 60
    assert len(steps["train_loss"]) >= 2000 and steps["train_loss"][0] == 1
    assert [p.step for p in points if p.key == "val_loss"] == [
        step for step in range(1, 100_001) if step % 6 == 0
    ]
    sparse = [{key: value for key, value in row.items() if key != "val_loss"} for row in rows(1, 100_000)]
    assert len(mirror.points(sparse, spec)[0]) <= 3 * (mirror.MOST_POINTS + 2)
    assert mirror.points(sparse, spec)[0][-1].step == 100_000


def test_m22_a_row_told_twice_is_there_once_and_other_ranks_say_nothing(runs, spec_of, monkeypatch):
    spec = spec_of()
    run_id, run_dir = mirror_run(spec, runs, rows(1, 24) + rows(24, 24), RunStatus.FINISHED)
    assert history(runs, run_id, "train_loss") == series(1, 24)
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, "1")
        assert isinstance(open_tracker(spec, run_dir, Settings(runs=runs)), NoTracker)
        monkeypatch.delenv(name)


def test_no_tracking_means_no_store(tmp_path, spec_of):
    spec = spec_of()
    tracker = open_tracker(spec, make_dir(spec, tmp_path), Settings(runs=tmp_path, tracking=False))
    tracker.log(rows(1, 1)[0])
    tracker.close(RunStatus.FINISHED)
    assert tracker.run_id == "" and {path.name for path in tmp_path.iterdir()} == {spec.spec_id}


def test_sync_rebuilds_a_lost_store_twice_with_the_same_result(runs, spec_of):
    folders = [
        finish_dir(spec_of(seed=seed), runs, status)
        for seed, status in enumerate((RunStatus.FINISHED, RunStatus.DIVERGED, RunStatus.INTERRUPTED))
    ]
    (runs / "not_a_run").mkdir()
    assert sync([*folders, runs / "not_a_run"], store_uri(runs), grid="demo") == 3
    first = contents(runs)
    assert len(first) == 3
    assert sync(folders, store_uri(runs), grid="demo") == 3
    assert contents(runs) == first
    started = {run.info.start_time for run in all_runs(runs)}
    assert started == {1767323045000}, "2026-01-02T03:04:05Z, from the record"
    assert {run.info.end_time for run in all_runs(runs)} == {1767323045000 + 2400}


def test_sync_brings_a_deleted_run_back_as_a_new_one(runs, spec_of):
    run_dir = finish_dir(spec_of(), runs)
    sync([run_dir], store_uri(runs))
    client(runs).delete_run(all_runs(runs)[0].info.run_id)
    sync([run_dir], store_uri(runs))
    assert len(all_runs(runs)) == 1


def test_a_spec_that_cannot_be_read_is_named(runs, spec_of):
    run_dir = make_dir(spec_of(), runs)
    (run_dir / "spec.json").write_text("{}")
    with pytest.raises(UserError, match=r"spec\.json: not a spec of this version"):
        sync([run_dir], store_uri(runs))


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(UserError, match="the MLflow store cannot be opened") as caught:
        prepare_store(f"sqlite:///{tmp_path}/blocked/mlflow.db")
    assert "\n" not in str(caught.value)


def test_no_request_leaves_the_machine_and_nothing_is_printed(first_use):
    work, _, done = first_use
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(work.iterdir()) == [], "no mlruns folder where the process ran"


def start_server(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """An MLflow server of one worker, up when this returns."""
    import socket

    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
    ]
    command += ["--artifacts-destination", str(folder / "files"), "--port", str(port), "--workers", "1"]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    log = open(folder / "server.log", "ab")  # noqa: SIM115  (the server's, for as long as it lives)
    server = subprocess.Popen(
        command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True
    )
    deadline = time.monotonic() + 90
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        assert server.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()
        time.sleep(0.2)


@pytest.mark.services
def test_m04_a_server_that_goes_away_in_the_middle_and_comes_back(
    runs, spec_of, tmp_path, monkeypatch, unused_port
):
    uri = f"http://127.0.0.1:{unused_port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    spec = spec_of()
    run_dir = make_dir(spec, runs)
    server = start_server(tmp_path, unused_port)
    try:
        tracker = tracking.MlflowTracker(spec, run_dir, Settings(runs=runs), uri, flush_seconds=0.2)
        run_id = tracker.run_id
        assert run_id
        for row in rows(1, 10):
            tracker.log(row)
        time.sleep(2)
        os.killpg(server.pid, 9)
        server.wait()
        for row in rows(11, 20):
            tracker.log(row)
        time.sleep(2)
        server = start_server(tmp_path, unused_port)
        for row in rows(21, 24):
            tracker.log(row)
        write_rows(run_dir, rows(1, 24))
        write_record(run_dir, record_of(spec, RunStatus.FINISHED))
        tracker.close(RunStatus.FINISHED)
        assert history(runs, run_id, "train_loss") == series(1, 24)
        assert [run.info.status for run in all_runs(runs)] == ["FINISHED"]
        assert {"spec.json", "record.json"} <= {item.path for item in client(runs).list_artifacts(run_id)}
        before = contents(runs)
        assert sync([run_dir], uri) == 1
        assert contents(runs) == before
    finally:
        os.killpg(server.pid, 9)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
