"""Many processes on one store."""

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.mlflow_store import MirroredRun, Store
from experiments.record import RunStatus
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.tracking import store_uri
from tests.experiments.mirrored import all_runs, history, make_dir, mirror_run, rows, series

FORK = multiprocessing.get_context("fork")


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
    run = MirroredRun(Store(store_uri(runs), runs), spec, make_dir(spec, runs), Settings(runs=runs))
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


def test_an_experiment_made_by_another_process_in_between_is_used(runs, monkeypatch):
    store = Store(store_uri(runs), runs)
    look_up = type(store.client).get_experiment_by_name
    answers = iter([None])
    monkeypatch.setattr(
        type(store.client), "get_experiment_by_name", lambda self, name: next(answers, look_up(self, name))
    )
    assert Store(store_uri(runs), runs).experiment_id == store.experiment_id
