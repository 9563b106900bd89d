"""Full and read-only disks: one line that says so, a true status, and the same results once they are mended."""

import signal

import pytest

from experiments.settings import Settings
from sweeps.__main__ import main as sweeps
from sweeps.plan import CellState, state_of
from tests.faults.cells import END_SECONDS, Started, outcome, run_cell
from tests.faults.conftest import tiny_settings, tiny_spec
from tests.faults.disks import fill, read_only, small_disk, unmount
from tests.faults.sabotage import FillsDisk, MakesReadOnly, SignalAt

NOT_DONE = (CellState.FAILED, CellState.STARTED, CellState.MISSING, CellState.INTERRUPTED)
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=4) as folder:
        yield folder


@pytest.fixture
def on_disk(disk, fault_data) -> Settings:
    """Settings of a cell whose folder lies on the small disk."""
    return tiny_settings(disk / "runs", fault_data)


def refused(cell: Started, why: str) -> None:
    """It ended in time, not as done, and said why in one line wherever that could be written."""
    assert cell.ended(END_SECONDS) in (1, 2)
    assert state_of(cell.run_dir)[0] in NOT_DONE
    log = cell.run_dir / "log.txt"
    told = cell.said() + (log.read_text() if log.exists() else "")
    assert why in told and "error: " in told
    assert "Traceback" not in cell.said()


def test_a_disk_with_less_and_less_on_it_to_spare(disk, on_disk, undisturbed, tmp_path):
    """Room for nothing, for the spec, for the log, for some checkpoints: then for all."""
    for spare in (0, 4096, 12288, 40960, 131072):
        ballast = fill(disk, spare)
        refused(Started(tiny_spec(), on_disk, tmp_path / "cell"), FULL)
        ballast.unlink()
    assert run_cell(tiny_spec(), on_disk, tmp_path / "cell") == 0
    assert outcome(on_disk.runs / tiny_spec().spec_id) == undisturbed(0)[0]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("place", "call"),
    [("counting the attempt", 1), ("building the model", 1), ("validating", 3), ("writing dynamics", 5),
     ("making a file durable", 1), ("making a file durable", 12), ("renaming a file", 2), ("renaming a file", 12),
     ("dropping old checkpoints", 1), ("making the record", 1)],
)  # fmt: skip
def test_a_disk_that_fills_up_while(place, call, disk, on_disk, undisturbed, tmp_path):
    refused(Started(tiny_spec(), on_disk, tmp_path / "cell", FillsDisk(disk, place, call)), FULL)
    (disk / "ballast").unlink()
    assert run_cell(tiny_spec(), on_disk, tmp_path / "cell") == 0
    assert outcome(on_disk.runs / tiny_spec().spec_id) == undisturbed(0)[0]


@pytest.mark.faults
def test_a_read_only_disk_before_and_after_an_interruption(disk, on_disk, undisturbed, tmp_path):
    with read_only(disk):
        refused(Started(tiny_spec(), on_disk, tmp_path / "cell"), "Read-only file system")
    cell = Started(tiny_spec(), on_disk, tmp_path / "cell", SignalAt("validating", 3, signal.SIGTERM))
    assert cell.ended(END_SECONDS) == 130
    with read_only(disk):
        refused(Started(tiny_spec(), on_disk, tmp_path / "cell"), "Read-only file system")
        assert state_of(cell.run_dir)[0] is CellState.INTERRUPTED
    assert run_cell(tiny_spec(), on_disk, tmp_path / "cell") == 0
    with read_only(disk):
        assert run_cell(tiny_spec(), on_disk, tmp_path / "cell") == 0, "a finished run is only read"
    assert outcome(cell.run_dir) == undisturbed(0)[0]


@pytest.mark.faults
@pytest.mark.parametrize("what", ["", "checkpoints"])
def test_a_folder_that_becomes_read_only_in_mid_run(what, on_disk, undisturbed, tmp_path):
    folder = on_disk.runs / tiny_spec().spec_id / what
    cell = Started(
        tiny_spec(), on_disk, tmp_path / "cell", MakesReadOnly(folder, "dropping old checkpoints", 5)
    )
    try:
        refused(cell, "Read-only file system")
    finally:
        unmount(folder)
    assert run_cell(tiny_spec(), on_disk, tmp_path / "cell") == 0
    assert outcome(on_disk.runs / tiny_spec().spec_id) == undisturbed(0)[0]


def test_a_sweep_on_a_read_only_disk_is_refused_before_anything_is_written(
    disk, tmp_path, fault_data, capsys
):
    with read_only(disk):
        for option, folder in (("--runs", disk / "runs"), ("--results", disk / "results")):
            other = {"--runs": tmp_path / "runs", "--results": tmp_path / "results"} | {option: folder}
            places = [str(part) for pair in other.items() for part in pair]
            assert sweeps(["run", "smoke", "--no-tracking", "--data", str(fault_data), *places]) == 2
            told = capsys.readouterr().err
            assert f"{disk} is read-only" in told and f"choose another {option}" in told
            assert told.count("\n") == 1
    assert not list(disk.iterdir())
