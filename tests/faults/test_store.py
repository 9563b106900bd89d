"""MLflow's store locked, deleted, missing, and cells killed beside it: no run is stopped, no series is wrong."""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

import pytest

from experiments.history import read_rows
from experiments.record import RunStatus, read_record
from experiments.settings import Settings
from experiments.tracking import prepare_store, store_uri, sync
from tests.experiments.mirrored import all_runs, contents, history
from tests.faults.cells import END_SECONDS, SERVER, Started, outcome, run_cell
from tests.faults.conftest import tiny_spec
from tests.faults.sabotage import Deletes, SignalAt, StoreAt


@pytest.fixture
def mirrored(settings, monkeypatch) -> Settings:
    """Cells told to a SQLite store beside their folders, which exists."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings.runs.mkdir()
    in_child(prepare_store, store_uri(settings.runs), settings.runs)
    return settings.model_copy(update={"tracking": True})


def in_child(work: Callable[..., object], *arguments: object) -> None:
    """Call it in a process of its own: MLflow keeps a store that was deleted open for ever."""
    child = SERVER.Process(target=work, args=arguments)
    child.start()
    child.join(120)
    assert child.exitcode == 0


def hold(store: str, locked: Event, release: Event) -> None:
    with sqlite3.connect(store, isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        locked.set()
        release.wait()
        database.execute("ROLLBACK")


@contextmanager
def locked_store(settings: Settings) -> Iterator[None]:
    """Another process holds an exclusive transaction."""
    locked, release = SERVER.Event(), SERVER.Event()
    holder = SERVER.Process(target=hold, args=(str(settings.runs / "mlflow.db"), locked, release))
    holder.start()
    assert locked.wait(60)
    try:
        yield
    finally:
        release.set()
        holder.join(30)


def in_store_once(settings: Settings) -> None:
    """`sync` twice gives the same store: one run, whose series are the rows of the directory."""
    run_dir = settings.runs / tiny_spec().spec_id
    in_child(sync, [run_dir], store_uri(settings.runs))
    first = contents(settings.runs)
    in_child(sync, [run_dir], store_uri(settings.runs))
    assert contents(settings.runs) == first
    (run,) = all_runs(settings.runs)
    assert run.info.status == "FINISHED"
    for key in ("train_loss", "val_loss", "lr", "grad_norm"):
        rows = [(row["step"], row[key]) for row in read_rows(run_dir / "metrics.jsonl") if key in row]
        assert history(settings.runs, run.info.run_id, key) == rows


@pytest.mark.faults
def test_m03_m04_a_locked_store_stops_nothing_and_sync_repairs_it(mirrored, undisturbed, tmp_path):
    with locked_store(mirrored):
        cell = Started(tiny_spec(), mirrored, tmp_path / "cell")
        assert cell.ended() == 0
        assert outcome(cell.run_dir) == undisturbed(0)[0]
    in_store_once(mirrored)


@pytest.mark.faults
def test_l12_m04_a_locked_store_does_not_keep_a_cell_from_stopping_in_time(mirrored, undisturbed, tmp_path):
    with locked_store(mirrored):
        cell = Started(tiny_spec(), mirrored, tmp_path / "cell", SignalAt("validating", 3, signal.SIGTERM))
        started = time.monotonic()
        assert cell.ended(END_SECONDS + 10) == 130
        assert time.monotonic() - started < END_SECONDS
        assert read_record(cell.run_dir).status is RunStatus.INTERRUPTED
    assert run_cell(tiny_spec(), mirrored, tmp_path / "cell") == 0
    assert outcome(cell.run_dir) == undisturbed(0)[0]
    in_store_once(mirrored)


@pytest.mark.faults
def test_m04_a_store_deleted_in_mid_run_is_rebuilt(mirrored, undisturbed, tmp_path):
    sabotage = Deletes(mirrored.runs / "mlflow.db", "dropping old checkpoints", 5)
    assert run_cell(tiny_spec(), mirrored, tmp_path / "cell", sabotage) == 0
    assert outcome(mirrored.runs / tiny_spec().spec_id) == undisturbed(0)[0]
    in_store_once(mirrored)


@pytest.mark.faults
@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:////proc/nowhere/mlflow.db", "htp:/nothing"])
def test_m04_a_store_that_is_not_there_stops_nothing(uri, mirrored, undisturbed, tmp_path):
    cell = Started(tiny_spec(), mirrored, tmp_path / "cell", StoreAt(uri))
    assert cell.ended() == 0
    assert "is out of reach" in cell.said() and cell.said().count("out of reach") == 1
    assert outcome(cell.run_dir) == undisturbed(0)[0]
    in_store_once(mirrored)


@pytest.mark.faults
def test_m07_m16_m17_a_cell_killed_at_five_random_moments_is_one_whole_run_in_the_store(
    mirrored, moments, undisturbed, tmp_path
):
    expected, seconds = undisturbed(0)
    for _ in range(5):
        cell = Started(tiny_spec(), mirrored, tmp_path / "cell")
        time.sleep(moments.uniform(0.2, 1.5) * seconds)
        cell.send(signal.SIGKILL)
        cell.ended()
    assert run_cell(tiny_spec(), mirrored, tmp_path / "cell") == 0
    assert outcome(cell.run_dir) == expected
    (run,) = all_runs(mirrored.runs)
    assert run.info.status == "FINISHED", "told by the run itself, before any sync"
    in_store_once(mirrored)


@pytest.mark.faults
def test_m23_every_point_is_in_the_store_after_a_stop(mirrored, tmp_path):
    """Told by the run itself, in the seconds it has: nothing is synchronised before the look."""
    cell = Started(
        tiny_spec(), mirrored, tmp_path / "cell", SignalAt("dropping old checkpoints", 9, signal.SIGTERM)
    )
    assert cell.ended(END_SECONDS) == 130
    (run,) = all_runs(mirrored.runs)
    assert run.info.status == "KILLED"
    rows = [(row["step"], row["train_loss"]) for row in read_rows(cell.run_dir / "metrics.jsonl")]
    assert len(rows) >= 9 and history(mirrored.runs, run.info.run_id, "train_loss") == rows
