"""Killed or asked to stop at any moment, a cell ends as if nothing had happened once it is started again."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeps.plan import CellState, state_of
from tests.faults.cells import END_SECONDS, Started, outcome, run_cell
from tests.faults.conftest import tiny_spec
from tests.faults.sabotage import PLACES, KilledBeforeRename, SignalAt

STOPPING = (signal.SIGTERM, signal.SIGUSR1)
INTERRUPTED = 130


def check_stopped(run_dir: Path, code: int) -> None:
    """After SIGTERM or SIGUSR1: the documented code, and a record that agrees with it."""
    state, _, problem = state_of(run_dir)
    if code < 0:  # before the command's handlers stand, the system ends the process: nothing has begun
        assert -code in STOPPING and state is CellState.MISSING
        return
    assert code in (0, INTERRUPTED), code
    assert not problem
    if code == 0:
        assert state is CellState.FINISHED
        return
    assert state in (CellState.INTERRUPTED, CellState.STARTED, CellState.MISSING, CellState.FINISHED)
    if state is CellState.INTERRUPTED and (run_dir / "checkpoints").exists():
        newest = max(
            re.findall(r"step-(\d+)", path.name)[0] for path in (run_dir / "checkpoints").glob("*.ckpt")
        )
        rows = (run_dir / "metrics.jsonl").read_text().splitlines()
        assert int(newest) == json.loads(rows[-1])["step"], "the step that was done is the one saved"


def kill_at_random(count, moments, settings, undisturbed, tmp_path) -> None:
    """SIGKILL ``count`` times, each start killed after a random part of the time a whole run takes."""
    killed, seed = 0, 0
    while killed < count:
        expected, seconds = undisturbed(seed)
        run_dir = settings.runs / tiny_spec(seed).spec_id
        while killed < count:
            cell = Started(tiny_spec(seed), settings, tmp_path / "cell")
            time.sleep(moments.uniform(0, seconds))
            in_time = cell.send(signal.SIGKILL)
            code = cell.ended()
            if not in_time or code == 0:
                break
            assert code == -signal.SIGKILL
            assert state_of(run_dir)[0] in (CellState.STARTED, CellState.MISSING, CellState.FINISHED)
            killed += 1
        assert run_cell(tiny_spec(seed), settings, tmp_path / "cell") == 0
        assert outcome(run_dir) == expected
        seed += 1


def stop_at_random(count, moments, settings, undisturbed, tmp_path) -> None:
    """SIGTERM or SIGUSR1 once at a random moment of each of ``count`` runs, then the same command again."""
    for number in range(count):
        expected, seconds = undisturbed(0)
        own = settings.model_copy(update={"runs": settings.runs / str(number)})
        run_dir = own.runs / tiny_spec().spec_id
        cell = Started(tiny_spec(), own, tmp_path / "cell")
        time.sleep(moments.uniform(0, seconds))
        cell.send(moments.choice(STOPPING))
        check_stopped(run_dir, cell.ended(END_SECONDS))
        assert run_cell(tiny_spec(), own, tmp_path / "cell") == 0
        assert outcome(run_dir) == expected


def test_l09_m07_killed_at_three_random_moments(moments, settings, undisturbed, tmp_path):
    kill_at_random(3, moments, settings, undisturbed, tmp_path)


@pytest.mark.faults
def test_l09_m07_killed_at_twenty_random_moments(moments, settings, undisturbed, tmp_path):
    kill_at_random(20, moments, settings, undisturbed, tmp_path)


def test_l12_l13_m07_stopped_at_three_random_moments(moments, settings, undisturbed, tmp_path):
    stop_at_random(3, moments, settings, undisturbed, tmp_path)


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_l12_l13_m07_stopped_at_fifty_random_moments(moments, settings, undisturbed, tmp_path):
    stop_at_random(50, moments, settings, undisturbed, tmp_path)


SIGTERM_PLACES = ("reading a batch", "validating")


@pytest.mark.parametrize("place", SIGTERM_PLACES)
def test_l12_l13_asked_to_stop_while(place, settings, undisturbed, tmp_path):
    stop_at(place, 1, signal.SIGTERM, settings, undisturbed, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("call", [1, 7])
@pytest.mark.parametrize("number", [signal.SIGKILL, *STOPPING])
@pytest.mark.parametrize("place", PLACES)
def test_l09_l12_l13_a_signal_while(place, number, call, settings, undisturbed, tmp_path):
    stop_at(place, call, number, settings, undisturbed, tmp_path)


def stop_at(place, call, number, settings, undisturbed, tmp_path) -> None:
    """One signal exactly there, then the same command again."""
    expected, _ = undisturbed(0)
    run_dir = settings.runs / tiny_spec().spec_id
    cell = Started(tiny_spec(), settings, tmp_path / "cell", SignalAt(place, call, number))
    code = cell.ended(END_SECONDS)
    if code == -signal.SIGKILL:
        assert number == signal.SIGKILL
        assert state_of(run_dir)[0] in (CellState.STARTED, CellState.MISSING, CellState.FINISHED)
    else:
        check_stopped(run_dir, code)
        assert "Traceback" not in cell.said()
    assert run_cell(tiny_spec(), settings, tmp_path / "cell") == 0
    assert outcome(run_dir) == expected


def test_l12_asked_to_stop_while_torch_is_imported(settings, tmp_path):
    """The command as people start it: what it says is one line, not the depths of an import."""
    (tmp_path / "spec.json").write_text(tiny_spec().model_dump_json())
    (tmp_path / "settings.json").write_text(settings.model_dump_json())
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", "run", "spec.json", "--settings", "settings.json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    maps, deadline = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 60
    while "libtorch_python" not in maps.read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=END_SECONDS)
    assert (process.returncode, told) == (INTERRUPTED, "interrupted; the same command continues\n")
    assert not settings.runs.exists()


@pytest.mark.faults
def test_w08_killed_twice_in_a_row_while_the_record_is_written(settings, undisturbed, tmp_path):
    for _ in range(2):
        cell = Started(tiny_spec(), settings, tmp_path / "cell", KilledBeforeRename("record.json"))
        assert cell.ended() == -signal.SIGKILL
        assert state_of(cell.run_dir)[0] is CellState.STARTED
        assert list(cell.run_dir.glob(".record.json.*.tmp"))
    assert run_cell(tiny_spec(), settings, tmp_path / "cell") == 0
    assert outcome(cell.run_dir) == undisturbed(0)[0], "and no leftovers"
