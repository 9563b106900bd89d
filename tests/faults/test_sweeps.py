"""Sweeps in which a cell raises, diverges, runs out of memory, is killed; two sweeps at the same instant."""

import functools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.attempts import Cause, read_attempts
from experiments.cell import execute
from experiments.record import read_record
from experiments.tracking import store_uri, sync
from sweeps.__main__ import main as sweeps
from sweeps.grid import Grid, load_grid
from sweeps.launch import base, local
from sweeps.plan import make_plan
from tests.experiments.mirrored import all_runs, contents
from tests.faults.cells import Outcome, outcome
from tests.faults.sabotage import Killed, LossIs, MemoryLimit, Once, Raises
from tests.sweeps.conftest import GRID_FILE

VICTIM = 1
"""Of the four cells."""


def sabotaged(run_dir: str, sweep_pid: int, *, victim: str, sabotage: Callable[[], None]) -> None:
    """In place of `experiments.cell.execute`: the same, with one cell sabotaged."""
    if Path(run_dir).name == victim:
        sabotage()
    execute(run_dir, sweep_pid)


class Sweep:
    """One grid of four cells of a second, and the command on it."""

    def __init__(self, grid: Grid, folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.grid, self.cells = grid, grid.cells
        self.folder, self.data, self.monkeypatch = folder, data, monkeypatch
        self.runs = folder / "runs"

    def run(self, sabotage: Callable[[], None] | None = None, *more: str) -> int:
        """``sweeps run`` in this process, the victim sabotaged."""
        target = execute
        if sabotage is not None:
            target = functools.partial(sabotaged, victim=self.cells[VICTIM].spec.spec_id, sabotage=sabotage)  # type: ignore[assignment]
        self.monkeypatch.setattr(local, "execute", target)
        return sweeps(
            ["run", self.grid.name, "--runs", str(self.runs), "--results", str(self.folder / "results"),
             "--data", str(self.data), "--no-tracking", "--jobs", "2", *more]
        )  # fmt: skip

    def states(self) -> list[str]:
        return [item.state.value for item in make_plan(self.grid, self.runs)]

    @property
    def victim(self) -> Path:
        return self.runs / self.cells[VICTIM].spec.spec_id

    def outcomes(self) -> list[Outcome]:
        return [outcome(self.runs / cell.spec.spec_id) for cell in self.cells]


@pytest.fixture(scope="module")
def grid_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("grid") / "faults_grid.py"
    path.write_text(GRID_FILE.format(name="faults_grid", widths=(8, 12), tokens_per_param=8))
    return path


@pytest.fixture(scope="module")
def grid(grid_path) -> Grid:
    return load_grid(str(grid_path))


@pytest.fixture
def sweep(grid, tmp_path, fault_data, monkeypatch) -> Sweep:
    monkeypatch.setattr(
        base, "measure_missing", lambda *_: None
    )  # ten seconds of timing that nobody asks for
    monkeypatch.setattr("sweeps.launch.retry.PAUSE_SECONDS", 0.2)
    return Sweep(grid, tmp_path, fault_data, monkeypatch)


@pytest.fixture(scope="module")
def expected(grid, tmp_path_factory, fault_data) -> list[Outcome]:
    """The cells of a sweep that nothing befell."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(base, "measure_missing", lambda *_: None)
        quiet = Sweep(grid, tmp_path_factory.mktemp("quiet"), fault_data, monkeypatch)
        assert quiet.run() == 0
        return quiet.outcomes()


def others(values: list) -> list:
    return values[:VICTIM] + values[VICTIM + 1 :]


FAILING = [
    pytest.param(Raises(ZeroDivisionError("planted"), 10), Cause.EXCEPTION, "ZeroDivisionError: planted", id="raises"),
    pytest.param(Raises(OSError(116, "Stale file handle"), 10), Cause.INPUT_OUTPUT, "Stale file handle", id="disk", marks=pytest.mark.faults),
    pytest.param(MemoryLimit(10), Cause.MEMORY, "memory", id="memory", marks=pytest.mark.faults),
]  # fmt: skip


@pytest.mark.parametrize(("sabotage", "cause", "told"), FAILING)
def test_w01_w03_a_cell_that_fails_is_tried_again_once_listed_and_done_by_the_next_sweep(
    sabotage, cause, told, sweep, expected, capsys
):
    assert sweep.run(sabotage) == 1
    said = capsys.readouterr().err
    assert f"retrying, 1 of 2: {sweep.cells[VICTIM].label}" in said and "retrying, 2 of 2" not in said
    assert f"failed: {sweep.cells[VICTIM].label} (at step 10: " in said and told in said
    assert sweep.states() == ["finished", "failed", "finished", "finished"]
    assert [failure.cause for failure in read_attempts(sweep.victim).failures] == [cause, cause]
    record = read_record(sweep.victim)
    assert (record.failed_at_step, record.attempts, record.val_loss) == (10, 2, None)
    assert others(sweep.outcomes()) == others(expected)
    assert sweep.run() == 0
    assert sweep.outcomes() == expected


@pytest.mark.parametrize(
    "sabotage",
    [
        pytest.param(Killed(10), id="killed"),
        pytest.param(MemoryLimit(10), id="memory", marks=pytest.mark.faults),
        pytest.param(Raises(ConnectionResetError(104, "reset"), 3), id="network", marks=pytest.mark.faults),
    ],
)
def test_m07_what_passes_is_survived_within_the_same_command(sabotage, sweep, expected, tmp_path, capsys):
    assert sweep.run(Once(sabotage, tmp_path / "happened")) == 0
    assert "retrying, 1 of 2" in capsys.readouterr().err
    assert sweep.states() == ["finished"] * 4
    assert read_record(sweep.victim).attempts == 2
    assert sweep.outcomes() == expected


@pytest.mark.faults
def test_m07_a_cell_killed_every_time_is_never_called_done_or_running(sweep, expected, capsys):
    assert sweep.run(Killed(10)) == 1
    said = capsys.readouterr().err
    assert "retrying, 2 of 2" in said and "killed by SIGKILL" in said
    assert sweep.states() == ["finished", "started", "finished", "finished"]
    assert read_attempts(sweep.victim).attempts == 3
    assert sweep.run() == 0
    assert sweep.outcomes() == expected
    assert read_record(sweep.victim).attempts == 4


@pytest.mark.faults
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_m11_w13_a_cell_that_diverges_is_not_tried_again(value, sweep, expected, capsys):
    assert sweep.run(LossIs(value, 10)) == 1
    said = capsys.readouterr().err
    assert f"diverged: {sweep.cells[VICTIM].label} (at step 10" in said and "retrying" not in said
    record = (sweep.victim / "record.json").read_bytes()
    assert sweep.run() == 1
    assert (sweep.victim / "record.json").read_bytes() == record
    assert sweep.states() == ["finished", "diverged", "finished", "finished"]
    assert others(sweep.outcomes()) == others(expected)
    assert "NaN" not in (sweep.victim / "metrics.jsonl").read_text()
    assert "Infinity" not in (sweep.victim / "metrics.jsonl").read_text()


@pytest.mark.faults
def test_w01_fail_fast_starts_nothing_after_the_last_retry(sweep, capsys):
    assert sweep.run(Raises(ZeroDivisionError("planted"), 2), "--fail-fast", "--jobs", "1") == 1
    assert capsys.readouterr().err.count("retrying") == 1
    order = sorted(range(4), key=lambda index: -sweep.cells[index].compute)
    later = order[order.index(VICTIM) + 1 :]
    assert later, "the victim is not the last to start"
    assert all(sweep.states()[index] == "missing" for index in later)


@pytest.mark.faults
def test_w04_m01_two_launchers_at_the_same_instant(
    sweep, grid_path, expected, fault_data, tmp_path, monkeypatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    command = [
        sys.executable,
        "-m",
        "sweeps",
        "run",
        str(grid_path),
        "--data",
        str(fault_data),
        "--jobs",
        "2",
    ]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [process.communicate(timeout=280) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert sweep.outcomes() == expected
    assert [read_attempts(sweep.runs / cell.spec.spec_id).attempts for cell in sweep.cells] == [1] * 4
    assert [run.info.status for run in all_runs(sweep.runs)] == ["FINISHED"] * 4
    before = contents(sweep.runs)
    assert sync([sweep.runs / cell.spec.spec_id for cell in sweep.cells], store_uri(sweep.runs)) == 4
    assert contents(sweep.runs) == before
