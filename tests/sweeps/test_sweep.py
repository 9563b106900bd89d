"""Whole sweeps through the command line, on grids of seconds."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeps.grid import load_grid
from sweeps.plan import is_running


def sweep(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, timeout=240)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sweeps", *map(str, arguments)]


def fingerprints(runs: Path) -> dict[str, tuple[str, int]]:
    """Hash and time of every finished cell's files that hold results."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for record in runs.glob("*/record.json")
        if json.loads(record.read_text())["status"] == "finished"
        for path in (record, record.parent / "metrics.jsonl", record.parent / "spec.json")
    }


def losses(runs: Path) -> dict[str, float]:
    return {
        record.parent.name: json.loads(record.read_text())["val_loss"]
        for record in runs.glob("*/record.json")
    }


def test_w05_a_sweep_trains_what_is_missing_and_a_second_one_nothing(grid_file, tmp_path, sweep_data):
    path = grid_file("sweep_once")
    first = sweep("run", path, "--data", sweep_data, "--no-tracking", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("finished: ") == 4
    assert "throughput at d2w8" in first.stdout
    before = fingerprints(tmp_path / "runs")
    assert len(before) == 12
    plan = tmp_path / "results/sweep_once/plan.json"
    planned = plan.read_bytes()
    assert [row["variant"] for row in json.loads(planned)["throughput"]] == ["full_attnres"] * 2
    second = sweep("run", path, "--data", sweep_data, "--no-tracking", cwd=tmp_path)
    assert second.returncode == 0 and "finished: " not in second.stdout
    assert "throughput" not in second.stdout and plan.read_bytes() == planned
    assert fingerprints(tmp_path / "runs") == before
    status = sweep("status", path, cwd=tmp_path)
    assert status.returncode == 0 and "4 cells: 4 finished" in status.stdout


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.faults), signal.SIGKILL])
def test_m07_w05_w08_a_killed_sweep_continues_and_equals_an_undisturbed_one(
    grid_file, tmp_path, sweep_data, number
):
    path = grid_file(f"sweep_killed_{number.name.lower()}", widths=(8, 12, 16), tokens_per_param=60)
    options = ("--data", sweep_data, "--no-tracking", "--jobs", "2")
    process = subprocess.Popen(
        command("run", path, *options),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (before := fingerprints(tmp_path / "runs")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=90)
    assert process.returncode == (130 if number is signal.SIGINT else -9)
    assert 0 < len(before) < 18
    again = sweep("run", path, *options, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    after = fingerprints(tmp_path / "runs")
    assert len(after) == 18 and all(after[name] == before[name] for name in before)
    undisturbed = sweep("run", path, *options, "--runs", "other_runs", "--results", "other", cwd=tmp_path)
    assert undisturbed.returncode == 0
    assert losses(tmp_path / "runs") == losses(tmp_path / "other_runs")
    assert not list((tmp_path / "runs").rglob("*.tmp"))


def test_m07_w08_cells_do_not_outlive_a_sweep_that_was_killed(grid_file, tmp_path, sweep_data):
    """Cells of minutes: each must checkpoint and free its run soon after the sweep is gone."""
    path = grid_file("sweep_orphans", tokens_per_param=4000)
    process = subprocess.Popen(
        command("run", path, "--data", sweep_data, "--no-tracking", "--jobs", "2"),
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    runs = tmp_path / "runs"
    deadline = time.monotonic() + 120
    while len(started := [p.parent for p in runs.glob("*/metrics.jsonl") if p.stat().st_size]) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    assert all(is_running(run_dir) for run_dir in started)
    process.kill()
    process.wait(timeout=30)
    deadline = time.monotonic() + 30
    while any(is_running(run_dir) for run_dir in started):
        assert time.monotonic() < deadline, "a cell trains on although its sweep is gone"
        time.sleep(0.2)
    for run_dir in started:
        assert json.loads((run_dir / "record.json").read_text())["status"] == "interrupted"
        assert list((run_dir / "checkpoints").glob("*.ckpt"))


def test_w01_w03_one_bad_cell_is_one_bad_cell(grid_file, tmp_path, sweep_data):
    path = grid_file("sweep_bad_cell")
    bad = load_grid(str(path)).cells[0].spec.spec_id
    (tmp_path / "runs" / bad / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs" / bad / "metrics.jsonl").mkdir()  # a folder where the history should be
    done = sweep("run", path, "--data", sweep_data, "--no-tracking", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("finished: ") == 3
    assert "failed: additive d2w8" in done.stderr
    assert f"{bad}/log.txt" in done.stderr
    assert (
        "metrics.jsonl: cannot be read (Is a directory)" in (tmp_path / "runs" / bad / "log.txt").read_text()
    )
    status = sweep("status", path, cwd=tmp_path)
    assert status.returncode == 1 and "1 failed" in status.stdout


def test_w04_two_sweeps_at_once_train_every_cell_once(grid_file, tmp_path, sweep_data):
    path = grid_file("sweep_twice", tokens_per_param=20)
    processes = [
        subprocess.Popen(
            command("run", path, "--data", sweep_data, "--no-tracking", "--jobs", "1"),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=240) for process in processes]
    assert len(fingerprints(tmp_path / "runs")) == 12, outputs
    attempts = [json.loads(p.read_text())["attempts"] for p in (tmp_path / "runs").glob("*/attempts.json")]
    assert attempts == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("plan", "dmo"), "unknown grid 'dmo'"),
        (("run", "smoke", "--launcher", "lokal"), "unknown launcher 'lokal': known are local"),
        (("run", "smoke", "--jobs", "0"), "--jobs 0"),
        (("run", "smoke", "--results", "file"), "file/smoke: cannot be written"),
        (("run", "smoke", "--runs", "file"), "file"),
    ],
)
def test_wrong_usage_is_one_line_exit_code_2_and_leaves_nothing(tmp_path, sweep_data, arguments, named):
    (tmp_path / "file").write_text("not a folder")
    extra = ("--data", sweep_data, "--no-tracking") if arguments[0] == "run" else ()
    done = sweep(*arguments, *extra, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_list_and_plan_tell_what_there_is(tmp_path):
    listed = sweep("list", cwd=tmp_path)
    assert listed.returncode == 0 and "demo" in listed.stdout and "smoke" in listed.stdout
    planned = sweep("plan", "demo", cwd=tmp_path)
    assert planned.returncode == 0
    assert "21 cells: 21 missing" in planned.stdout and (tmp_path / "results/demo/plan.json").exists()
