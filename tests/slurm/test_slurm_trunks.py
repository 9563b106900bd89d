"""Trunks through a real Slurm: a trunk that is requeued keeps its branches waiting, and changes no result."""

from pathlib import Path

import pytest

from sweeps.grid import load_grid
from sweeps.slurm_queue import batches
from tests.slurm.test_slurm import Sweeps, record, rows, sweeps, wait_for  # noqa: F401  (sweeps: fixture)

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1200)]

GRID = """
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Grid
from sweeps.trunks import BranchedRung, branched_pairs

ARMS = (ADDITIVE, StreamSpec(name="full_attnres"))


@GRIDS.register("requeued_trunk")
def make() -> Grid:
    shape = ModelShape(depth=3, width=24, num_heads=2, mlp_width=48, vocab_size=64, seq_len=64)
    rung = BranchedRung(shape, (10, 80))
    cells = branched_pairs(rung, arms=ARMS, dataset="synthetic", recipe="smoke_trunks")
    return Grid("requeued_trunk", "two trunks, four branches", ARMS, tuple(cells))
"""


def test_w06_w07_branches_wait_for_a_trunk_that_is_requeued(cluster, sweeps: Sweeps):  # noqa: F811
    path: Path = sweeps.folder / "requeued_trunk.py"
    path.write_text(GRID)
    cells = load_grid(str(path)).cells
    trunk, branches = cells[0], [cell for cell in cells if cell.parent_id]
    sweep = sweeps.start("run", path, "--no-tracking", "--launcher", "slurm")
    wait_for("the trunk trains", lambda: sweeps.step(trunk.spec.spec_id) > 10)
    ((batch, _),) = [(b, c) for b, c in batches(sweeps.runs).items() if trunk.spec.spec_id in c]
    queue = cluster.call("squeue", "--noheader", "--array", "--format=%j|%i|%T|%r")
    waiting = [line for line in queue.splitlines() if line.endswith("|PENDING|Dependency")]
    assert len(waiting) == len(branches), queue
    (job,) = [
        line.split("|")[1] for line in queue.splitlines()
        if line.startswith(f"attnres-{batch}|") and line.split("|")[1].endswith("_0")
    ]  # fmt: skip
    cluster.call("scontrol", "requeue", job)
    output, _ = sweep.communicate(timeout=900)
    assert sweep.returncode == 0, output
    assert "after their trunk's job" in output
    assert record(sweeps.runs / trunk.spec.spec_id)["attempts"] >= 2
    for cell in branches:
        found = record(sweeps.runs / cell.spec.spec_id)
        assert (found["parent_id"], found["attempts"]) == (cell.parent_id, 1), output
    code, output = sweeps.finish("run", path, "--no-tracking", "--jobs", 2, "--runs", "local_runs")
    assert code == 0, output
    for cell in cells:
        here, there = (folder / cell.spec.spec_id for folder in (sweeps.runs, sweeps.folder / "local_runs"))
        assert rows(here) == rows(there)
        assert record(here)["val_loss"] == record(there)["val_loss"]
