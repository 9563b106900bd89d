"""What a grid costs beyond its runs: planning and restarting a thousand cells, eight cells at once."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from analysis.plan_file import Throughput
from benchmarks.timing import Ratio, number, row
from experiments.record import RunRecord, write_record
from experiments.run import run
from experiments.run_folder import prepare_folder
from experiments.settings import Settings
from experiments.tracking import store_uri
from sweeps.grid import Grid, load_grid
from sweeps.plan import write_plan

CELLS = 1000
PLAN_SECONDS, RESTART_SECONDS = 5.0, 10.0

GRID_FILE = """
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Grid, Rung, pairs

ARMS = (ADDITIVE, StreamSpec(name="block_attnres", options={"num_blocks": 2}))


@GRIDS.register("large")
def large() -> Grid:
    cells = []
    for index in range(100):
        width, depth = 64 + 8 * (index // 10), 2 + index % 10
        shape = ModelShape(
            depth=depth, width=width, num_heads=2, mlp_width=168, vocab_size=64, seq_len=64
        )
        rung = Rung(shape, 20 + index, seeds=tuple(range(5)))
        cells += pairs(rung, arms=ARMS, dataset="synthetic", recipe="smoke")
    return Grid("large", "a thousand cells: two arms, a hundred shapes, five seeds", ARMS, tuple(cells))
"""


def finish(grid: Grid, settings: Settings, pattern: RunRecord) -> None:
    """Folders as finished runs leave them, every record with its own spec."""
    for cell in grid.cells:
        spec = cell.spec
        run_dir = prepare_folder(spec, settings)
        own = pattern.model_dump() | spec.shape.model_dump()
        own |= {"spec_id": spec.spec_id, "seed": spec.seed, "tokens": spec.tokens, "steps": spec.steps}
        per_token = sum(own[f"flops_per_token_{part}"] for part in ("matmul", "attention", "head", "stream"))
        write_record(run_dir, RunRecord.model_validate(own | {"compute": per_token * spec.tokens}))


def grid_rows() -> list[dict[str, Any]]:
    """Seconds of the commands on a large grid, interpreter and imports included."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "large.py").write_text(GRID_FILE)
        settings = Settings(runs=folder / "runs", data=folder / "data", tracking=False)
        planned = [_seconds(folder, "plan", "large.py") for _ in range(3)]
        small = load_grid("smoke").cells[0].spec
        grid = load_grid(str(folder / "large.py"))
        assert len(grid.cells) == CELLS
        finish(grid, settings, run(small, settings))
        cells = grid.cells
        first = {(cell.size, cell.spec.stream.variant): cell.spec.spec_id for cell in reversed(cells)}
        baseline, variant = (arm.variant for arm in grid.arms)
        ratios = [
            Throughput(
                size=size,
                variant=variant,
                baseline=baseline,
                spec_ids=(first[size, baseline], first[size, variant]),
                ratio=1.0,
                rounds=1,
                machine="",
            )
            for size in dict.fromkeys(cell.size for cell in cells)
        ]
        write_plan(grid, folder / "results/large", ratios)
        again = [_seconds(folder, "run", "large.py", "--no-tracking") for _ in range(3)]
    return [
        row(f"plan of {CELLS} cells, s", _spread(planned), PLAN_SECONDS),
        row(f"restart of {CELLS} finished cells, s", _spread(again), RESTART_SECONDS),
    ]


def _spread(seconds: list[float]) -> Ratio:
    return Ratio(sorted(seconds)[len(seconds) // 2], min(seconds), max(seconds), sum(seconds), 1.0)


def _seconds(folder: Path, *arguments: str) -> float:
    begin = time.perf_counter()
    _sweeps(folder, *arguments)
    return time.perf_counter() - begin


def _sweeps(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sweeps", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
    )
    if done.returncode:
        raise RuntimeError(f"sweeps {' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")


EIGHT_FILE = """
from attnres.shape import ModelShape
from sweeps.grid import ADDITIVE, GRIDS, Grid, Rung, pairs

@GRIDS.register("eight")
def eight() -> Grid:
    shape = ModelShape(depth=1, width=8, num_heads=1, mlp_width=8, vocab_size=64, seq_len=32)
    rung = Rung(shape, 20, seeds=tuple(range(8)))
    cells = pairs(rung, arms=(ADDITIVE,), dataset="synthetic", recipe="smoke")
    return Grid("eight", "eight cells at once", (ADDITIVE,), tuple(cells))
"""


def store_rows() -> list[dict[str, Any]]:
    """Cells of eight, started at once on an empty folder, that finished and that MLflow has as finished."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "eight.py").write_text(EIGHT_FILE)
        _sweeps(folder, "run", "eight.py", "--jobs", "8")
        records = [json.loads(path.read_text()) for path in (folder / "runs").glob("*/record.json")]
        finished = sum(record["status"] == "finished" for record in records)
        store = MlflowClient(tracking_uri=store_uri(folder / "runs"))
        experiments = [experiment.experiment_id for experiment in store.search_experiments()]
        told = store.search_runs(experiments, filter_string="attributes.status = 'FINISHED'")
    return [
        number("of 8 cells at once on an empty store: finished", finished, 8, at_least=True),
        number("of 8 cells at once on an empty store: finished in MLflow", len(told), 8, at_least=True),
    ]


def rows() -> list[dict[str, Any]]:
    return [*grid_rows(), *store_rows()]
