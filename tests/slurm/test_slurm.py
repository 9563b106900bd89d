"""Whole sweeps through a real Slurm: limits shorter than a cell, preemption, two sweeps at once, scancel."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.run_folder import is_running
from sweeps.grid import load_grid
from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(5400)]

SITE = "partition = 'low'\nminutes = {minutes}\nsignal_seconds = 1\narray_limit = 3\nside_by_side = 1\n"
EARLY_SECONDS = 31
"""Slurm looks at its clock twice a minute: the signal comes that much before the limit, or less."""
GRID = """
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Grid, Rung, pairs

ARMS = (ADDITIVE, StreamSpec(name="full_attnres"))


@GRIDS.register("{name}")
def make() -> Grid:
    cells = []
    for width, tokens_per_param in {rungs}:
        shape = ModelShape(depth=3, width=width, num_heads=2, mlp_width=2 * width, vocab_size=64, seq_len=64)
        cells += pairs(Rung(shape, tokens_per_param), arms=ARMS, dataset="synthetic", recipe="smoke")
    return Grid("{name}", "cells of chosen lengths", ARMS, tuple(cells))
"""
LONG, SHORT = 40, 12
"""Widths."""


class Sweeps:
    """``python -m sweeps`` in a folder, with or without the cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.runs = folder / "runs"
        self.processes: list[subprocess.Popen[str]] = []
        self.minutes = self._limit_minutes()
        self.patience = 600 * (1 + self.minutes)
        """Seconds that a sweep may take: three limits for each long cell, on a machine as slow as this is now."""
        (folder / "site.toml").write_text(SITE.format(minutes=self.minutes))

    def _limit_minutes(self) -> int:
        """The shortest limit (whole minutes) in which a start and many steps fit, on this machine as it is.

        Two starts side by side, and a machine that others use too: with 2.5 starts it came to a standstill.
        """
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import experiments.run"], check=True, timeout=300)
        return math.ceil((EARLY_SECONDS + 5 * (time.monotonic() - began)) / 60)

    def grid(self, name: str, *rungs: tuple[int, float]) -> Path:
        path = self.folder / f"{name}.py"
        path.write_text(GRID.format(name=name, rungs=rungs))
        return path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeps", *map(str, arguments)],
            cwd=self.folder,
            env={**self.cluster.environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=90)

    def finish(self, *arguments: object) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=self.patience)
        return process.returncode, output

    def step(self, spec_id: str) -> int:
        path = self.runs / spec_id / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def sweeps(cluster: Cluster, tmp_path: Path) -> Iterator[Sweeps]:
    started = Sweeps(cluster, tmp_path)
    yield started
    started.stop()
    cluster.cancel_jobs()


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The history without the wall clock."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def record(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "record.json").read_text())


def wait_for(what: str, ready: Callable[[], bool], *, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.5)


def tokens_per_param(sweeps: Sweeps, seconds: float) -> float:
    """Length of the long cells such that the faster one trains for ``seconds`` here."""
    path = sweeps.grid("speed", (LONG, 20))
    code, output = sweeps.finish("run", path, "--no-tracking", "--jobs", 2, "--runs", "speed_runs")
    assert code == 0, output
    cells = load_grid(str(path)).cells
    speeds = [record(sweeps.folder / "speed_runs" / c.spec.spec_id)["tokens_per_second"] for c in cells]
    return round(max(speeds) * seconds / cells[0].params)


def test_l12_w06_w07_w10_limits_and_preemption_change_no_result(cluster, sweeps, tmp_path):
    path = sweeps.grid("clustered", (SHORT, 8), (LONG, tokens_per_param(sweeps, 3 * 60 * sweeps.minutes)))
    cells = load_grid(str(path)).cells
    long = [cell.spec.spec_id for cell in cells[2:]]
    command = ("run", path, "--no-tracking", "--launcher", "slurm")
    first = sweeps.start(*command)
    wait_for("a cell trains", lambda: any(sweeps.step(cell.spec.spec_id) > 0 for cell in cells))

    second = sweeps.start(*command)
    time.sleep(15)
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate(timeout=60)
    assert first.returncode == 130, told
    assert told.count("submitted ") == 2 and "cells stay in the queue" in told
    names = set(cluster.call("squeue", "--noheader", "--format=%j").split())
    assert len(names) <= 2, "the second sweep submitted cells again"
    code, status = sweeps.finish("status", path)
    assert code == 0 and re.search(r"(running|queued): .*\(job \d", status), status

    preempt(cluster, sweeps, long[1])
    told, _ = second.communicate(timeout=sweeps.patience)
    assert second.returncode == 0, told
    assert not re.search(r"submitted \d", told) and "not submitted again" in told
    assert "throughput is measured by job" in told
    assert {row["size"] for row in plan_of(sweeps, "clustered")["throughput"]} == {
        cell.size for cell in cells
    }
    assert cluster.call("squeue", "--noheader") == ""

    code, output = sweeps.finish(
        "run", path, "--no-tracking", "--jobs", 2, "--runs", "local", "--results", "local_results"
    )
    assert code == 0, output
    for cell in cells:
        here, there = sweeps.runs / cell.spec.spec_id, tmp_path / "local" / cell.spec.spec_id
        assert [row["step"] for row in rows(here)] == list(range(1, cell.spec.steps + 1))
        assert rows(here) == rows(there)
        assert record(here)["status"] == "finished"
        assert record(here)["val_loss"] == record(there)["val_loss"]
    attempts = [record(sweeps.runs / spec_id)["attempts"] for spec_id in long]
    assert min(attempts) >= 2, "no limit was met"  # three or more, unless the machine has become faster
    assert not list(sweeps.runs.rglob("*.tmp"))

    before = cluster.call("scontrol", "show", "config")
    code, output = sweeps.finish(*command)
    assert code == 0 and "submitted" not in output
    assert job_number(before) == job_number(cluster.call("scontrol", "show", "config")), "submitted again"


def plan_of(sweeps: Sweeps, grid: str) -> dict[str, Any]:
    return json.loads((sweeps.folder / "results" / grid / "plan.json").read_text())


def job_number(configuration: str) -> str:
    return re.search(r"NEXT_JOB_ID\s*=\s*(\d+)", configuration)[1]


def preempt(cluster: Cluster, sweeps: Sweeps, spec_id: str) -> None:
    """A job of the higher partition takes the cell's node; the cell must write its checkpoint and requeue."""
    run_dir = sweeps.runs / spec_id

    def node() -> str:
        for line in cluster.call(
            "squeue", "--noheader", "--array", "--states=RUNNING", "--format=%j|%K|%N"
        ).splitlines():
            name, task, place = line.split("|")
            batch = sweeps.runs / "slurm" / name.removeprefix("attnres-") / "cells.json"
            if (
                batch.exists()
                and json.loads(batch.read_text())["cells"][int(task) if task.isdigit() else 0] == spec_id
            ):
                return place
        return ""

    log = run_dir / "log.txt"
    for _ in range(4):  # the time limit may be faster
        wait_for("a job of the cell that trains", lambda: bool(node()) and is_running(run_dir))
        place, requeued = node(), log.read_text().count("is requeued")
        if not place:
            continue
        urgent = ("sbatch", "--parsable", "--partition=high", f"--nodelist={place}", "--output=/dev/null")
        job_id = cluster.call(*urgent, "--wrap", "sleep 1").strip()
        wait_for("the cell gives way", lambda: log.read_text().count("is requeued") > requeued)  # noqa: B023
        wait_for("the urgent job is over", lambda: job_id not in cluster.call("squeue", "-ho%i").split())  # noqa: B023
        if re.search(r"preemption grace time for JobId", (cluster.folder / "slurmctld.log").read_text()):
            return
    raise AssertionError("Slurm never preempted the cell")


def test_w07_a_job_that_a_person_cancels_stays_cancelled(cluster, sweeps):
    path = sweeps.grid("cancelled", (LONG, 4000))
    cells = [cell.spec.spec_id for cell in load_grid(str(path)).cells]
    process = sweeps.start("run", path, "--no-tracking", "--launcher", "slurm")
    wait_for("both cells train", lambda: all(sweeps.step(spec_id) > 0 for spec_id in cells))
    cluster.call("scancel", "--user=root")
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 1, told
    assert told.count("interrupted: ") == 2 and "the same command continues" in told
    wait_for("the queue is empty", lambda: cluster.call("squeue", "--noheader") == "", seconds=60)
    time.sleep(10)
    assert cluster.call("squeue", "--noheader") == "", "a cancelled job came back"
    for spec_id in cells:
        assert list((sweeps.runs / spec_id / "checkpoints").glob("*.ckpt"))
        assert record(sweeps.runs / spec_id)["status"] == "interrupted"


def test_w10_a_cell_of_two_tasks_on_two_nodes_is_signalled_requeued_and_equals_one_process(cluster, sweeps):
    """Its step is signalled in mid-run, as at a time limit: one checkpoint, one requeue, then the end."""
    addresses = "setup = ['export MASTER_ADDR=127.0.0.1']\n"  # the nodes' names are not in any DNS
    (sweeps.folder / "site.toml").write_text(SITE.format(minutes=10) + "nodes = 2\n" + addresses)
    path = sweeps.grid("two_tasks", (SHORT, 80))
    cell, other = (cell.spec for cell in load_grid(str(path)).cells)
    process = sweeps.start("run", path, "--no-tracking", "--launcher", "slurm", "--processes", "2")
    wait_for("a cell trains", lambda: any(sweeps.step(spec.spec_id) > 20 for spec in (cell, other)))
    at_work = cell if sweeps.step(cell.spec_id) > 20 else other
    nodes = cluster.call("squeue", "--noheader", "--states=RUNNING", "--format=%D").split()
    assert nodes == ["2"], "three nodes have room for one cell of two"
    (job,) = cluster.call("squeue", "--noheader", "--states=RUNNING", "--format=%A").split()
    cluster.call("scancel", "--signal=USR2", job)
    log = sweeps.runs / at_work.spec_id / "log.txt"
    wait_for("the cell goes back into the queue", lambda: log.read_text().count("is requeued") == 1)
    told, _ = process.communicate(timeout=sweeps.patience)
    assert process.returncode == 0, told
    code, output = sweeps.finish(
        "run", path, "--no-tracking", "--jobs", 2, "--runs", "local", "--results", "local_results"
    )
    assert code == 0, output
    for spec in (cell, other):
        here = record(sweeps.runs / spec.spec_id)
        assert (here["status"], here["processes"], here["strategy"]) == ("finished", 2, "ddp")
        assert here["attempts"] == (2 if spec is at_work else 1)
        there = record(sweeps.folder / "local" / spec.spec_id)
        assert here["val_loss"] == pytest.approx(there["val_loss"], rel=1e-5)
        steps = [row["step"] for row in rows(sweeps.runs / spec.spec_id)]
        assert steps == list(range(1, spec.steps + 1))


def test_what_sbatch_refuses_is_one_line_and_exit_code_2(sweeps, tmp_path):
    (tmp_path / "site.toml").write_text("partition = 'nowhere'\n")
    code, output = sweeps.finish(
        "run", sweeps.grid("refused", (SHORT, 8)), "--no-tracking", "--launcher", "slurm"
    )
    assert code == 2
    assert output.count("error: ") == 1
    assert output.splitlines()[-1].startswith("error: sbatch: invalid partition specified: nowhere; mend")
    assert not list((sweeps.runs / "slurm").glob("*/cells.json"))
