"""The commands behind ``python -m sweeps``: each takes the parsed options, returns an exit code."""

import argparse
import sys
from collections.abc import Callable

from analysis.outlook import outlook
from attnres.errors import UserError
from experiments.data.base import DATASETS
from experiments.settings import Settings
from experiments.tracking import prepare_store, store_uri, sync
from sweeps.grid import GRIDS, Grid, load_grid
from sweeps.launch.base import LAUNCHERS
from sweeps.plan import CellState, make_plan, plan_document, write_plan
from sweeps.show import ProgressLines, print_plan, summary
from sweeps.throughput import measure_missing

FAILED_STATES = (CellState.FAILED, CellState.DIVERGED)


def list_grids(options: argparse.Namespace) -> int:  # noqa: ARG001
    """Names and descriptions of the registered grids."""
    for name in GRIDS.names():
        grid = load_grid(name)
        print(f"{name:12} {len(grid.cells):4} cells  {grid.description}")
    return 0


def plan(options: argparse.Namespace) -> int:
    """Print the dry run and write plan.json."""
    grid = load_grid(options.grid)
    _write_plan(grid, options)
    print(f"{grid.name}: {grid.description}")
    print_plan(make_plan(grid, options.runs), options.jobs)
    for line in outlook(plan_document(grid)["cells"]):
        print(line)
    return 0


def run(options: argparse.Namespace) -> int:
    """Train what is missing; then measure throughput side by side where that is missing."""
    grid = load_grid(options.grid)
    launcher = LAUNCHERS.get(options.launcher)()
    settings = Settings(
        runs=options.runs.resolve(),
        data=options.data.resolve(),
        grid=grid.name,
        device=options.device,
        threads=options.threads,
        tracking=not options.no_tracking,
    )
    _write_plan(grid, options)
    planned = make_plan(grid, options.runs)
    cells = [item.cell for item in planned if not item.done]
    print(f"{grid.name}: {summary(planned)}", flush=True)
    if cells:
        _prepare(grid, settings)
        show = ProgressLines(len(planned), len(planned) - len(cells))
        whole = launcher.launch(cells, settings, jobs=options.jobs, fail_fast=options.fail_fast, show=show)
        planned = make_plan(grid, options.runs)
        print(f"{grid.name}: {summary(planned)}", flush=True)
        if not whole:
            raise KeyboardInterrupt
    measure_missing(grid, options.results / grid.name, settings)
    return 1 if any(not item.done or item.state in FAILED_STATES for item in planned) else 0


def status(options: argparse.Namespace) -> int:
    """Count the cells; exit code 1 if any failed."""
    grid = load_grid(options.grid)
    planned = make_plan(grid, options.runs)
    print(f"{grid.name}: {summary(planned)}")
    for item in planned:
        if item.state is not CellState.FINISHED:
            print(f"  {item.state.value}: {item.cell.label} ({options.runs / item.cell.spec.spec_id})")
    return 1 if any(item.state in FAILED_STATES for item in planned) else 0


def synchronise(options: argparse.Namespace) -> int:
    """Rebuild the store's runs from the run directories."""
    grid = load_grid(options.grid)
    uri = store_uri(options.runs)
    prepare_store(uri)
    folders = [options.runs / cell.spec.spec_id for cell in grid.cells]
    count = sync([folder for folder in folders if folder.exists()], uri, grid.name)
    print(f"{grid.name}: {count} runs in the store")
    return 0


def _prepare(grid: Grid, settings: Settings) -> None:
    """What must exist once before cells start side by side: the data and the store's schema."""
    for dataset, vocab_size in sorted({(c.spec.dataset, c.spec.shape.vocab_size) for c in grid.cells}):
        DATASETS.get(dataset).prepare(vocab_size, settings.data)
    if settings.tracking:
        try:
            prepare_store(store_uri(settings.runs))
        except UserError as error:
            print(f"warning: {error}; cells train all the same, `sync` tells MLflow later", file=sys.stderr)


def _write_plan(grid: Grid, options: argparse.Namespace) -> None:
    study = options.results / grid.name
    try:
        write_plan(grid, study)
    except OSError as error:
        raise UserError(
            f"{study}: cannot be written ({error.strerror}); make it writable or choose another --results"
        ) from error


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": list_grids,
    "plan": plan,
    "run": run,
    "status": status,
    "sync": synchronise,
}
