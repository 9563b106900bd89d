"""A sweep whose cells take two processes each."""

import subprocess
import time

import pytest

from experiments.record import RunStatus, read_record
from experiments.run import run
from experiments.settings import Settings
from sweeps.grid import load_grid
from sweeps.plan import is_running
from tests.sweeps.test_sweep import command, sweep


@pytest.mark.faults
def test_w05_w08_a_cell_of_two_processes_ends_with_its_sweep_and_goes_on(grid_file, tmp_path, sweep_data):
    path = grid_file("sweep_of_two", widths=(8,), tokens_per_param=200)
    specs = [cell.spec for cell in load_grid(str(path)).cells]
    together = ("--data", sweep_data, "--no-tracking", "--jobs", "3", "--processes", "2")  # room for one cell
    process = subprocess.Popen(
        command("run", path, *together), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    runs = tmp_path / "runs"
    deadline = time.monotonic() + 120
    while not (started := [p.parent for p in runs.glob("*/metrics.jsonl") if p.stat().st_size > 2000]):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    assert [(runs / spec.spec_id).exists() for spec in specs].count(True) == 1
    process.kill()
    process.wait(timeout=30)
    deadline = time.monotonic() + 30
    while is_running(started[0]):
        assert time.monotonic() < deadline, "a cell trains on although its sweep is gone"
        time.sleep(0.1)
    assert read_record(started[0]).status is RunStatus.INTERRUPTED

    again = sweep("run", path, *together, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    records = [read_record(runs / spec.spec_id) for spec in specs]
    assert [(record.processes, record.strategy) for record in records] == [(2, "ddp")] * 2
    assert sorted(record.attempts for record in records) == [1, 2]
    alone = Settings(runs=tmp_path / "alone", data=sweep_data, tracking=False)
    expected = [run(spec, alone).val_loss for spec in specs]
    assert [record.val_loss for record in records] == pytest.approx(expected, rel=1e-5)


def test_more_processes_than_jobs_are_refused_before_anything_is_written(tmp_path):
    done = sweep("run", "smoke", "--jobs", "2", "--processes", "4", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: --processes 4: a cell takes as many jobs; set --jobs 4, or fewer processes\n"
    )
    assert list(tmp_path.iterdir()) == []
