"""The commands behind ``python -m sweeps``: each takes the parsed options, returns an exit code."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.outlook import outlook
from attnres.errors import UserError
from experiments.data.base import DATASETS
from experiments.feasibility import check_processes
from experiments.settings import Settings
from experiments.tracking import prepare_store, store_uri, sync
from sweeps.concerns import concerns, data_of, this_machine
from sweeps.export import export_study
from sweeps.grid import GRIDS, Grid, load_grid
from sweeps.launch.base import LAUNCHERS
from sweeps.plan import CellState, PlannedCell, make_plan, plan_document, with_queue, write_plan
from sweeps.prune import checkpoints_to_drop, drop
from sweeps.show import ProgressLines, print_plan, quantity, summary
from sweeps.slurm_queue import read_queue

FAILED_STATES = (CellState.FAILED, CellState.DIVERGED, CellState.DAMAGED)


def list_grids(options: argparse.Namespace) -> int:  # noqa: ARG001
    """Names and descriptions of the registered grids."""
    for name in GRIDS.names():
        grid = load_grid(name)
        print(f"{name:12} {len(grid.cells):4} cells  {grid.description}")
    return 0


def plan(options: argparse.Namespace) -> int:
    """Print the dry run and write plan.json."""
    grid = load_grid(options.grid)
    _check_folders(grid, options)
    write_plan(grid, options.results / grid.name)
    planned = _planned(grid, options.runs)
    data = data_of(grid.cells, options.data)
    print(f"{grid.name}: {grid.description}")
    print_plan(planned, options.jobs, data)
    _tell_damaged(planned)
    machine = this_machine(options.runs, options.device)
    for line in concerns(planned, jobs=options.jobs, machine=machine, data=data):
        print(f"warning: {line}")
    for line in outlook(plan_document(grid)["cells"]):
        print(line)
    return 0


def run(options: argparse.Namespace) -> int:
    """Train what is missing; then measure throughput side by side where that is missing."""
    grid = load_grid(options.grid)
    launcher = LAUNCHERS.get(options.launcher)(options.site)
    settings = Settings(
        runs=options.runs.resolve(),
        data=options.data.resolve(),
        grid=grid.name,
        device=options.device,
        threads=options.threads,
        processes=options.processes,
        strategy=options.strategy,
        tracking=not options.no_tracking,
    )
    launcher.check(settings, jobs=options.jobs)
    for cell in grid.cells:
        check_processes(cell.spec, settings)
    _check_folders(grid, options)
    write_plan(grid, options.results / grid.name)
    planned = _planned(grid, options.runs)
    cells = [item.cell for item in planned if item.to_train]
    print(f"{grid.name}: {summary(planned)}", flush=True)
    _tell_damaged(planned)
    show = ProgressLines(len(planned), sum(item.done for item in planned))
    if cells:
        _prepare(grid, settings)
        whole = launcher.launch(
            cells,
            settings,
            jobs=options.jobs,
            retries=options.retries,
            fail_fast=options.fail_fast,
            show=show,
        )
        planned = _planned(grid, options.runs)
        print(f"{grid.name}: {summary(planned)}", flush=True)
        if not whole:
            raise KeyboardInterrupt
    if all(item.done for item in planned):
        launcher.measure(grid, options.results / grid.name, settings, show)
    return 1 if any(not item.done or item.state in FAILED_STATES for item in planned) else 0


def status(options: argparse.Namespace) -> int:
    """Count the cells; exit code 1 if any failed."""
    grid = load_grid(options.grid)
    _check_runs(options.runs)
    planned = _planned(grid, options.runs)
    print(f"{grid.name}: {summary(planned)}")
    for item in planned:
        if item.state is not CellState.FINISHED:
            told = item.problem or options.runs / item.cell.spec.spec_id
            print(f"  {item.state.value}: {item.cell.label} ({told})")
    return 1 if any(item.state in FAILED_STATES for item in planned) else 0


def synchronise(options: argparse.Namespace) -> int:
    """Rebuild the store's runs from the run directories."""
    grid = load_grid(options.grid)
    _check_runs(options.runs)
    if not options.runs.exists():
        raise UserError(f"{options.runs}: no such folder; train something first, or name another --runs")
    uri = store_uri(options.runs)
    prepare_store(uri, options.runs)
    folders = [options.runs / cell.spec.spec_id for cell in grid.cells]
    count = sync([folder for folder in folders if folder.exists()], uri, grid.name)
    print(f"{grid.name}: {count} runs in the store")
    return 0


def prune(options: argparse.Namespace) -> int:
    """Drop the checkpoints of cells that are done."""
    grid = load_grid(options.grid)
    _check_runs(options.runs)
    dropped = checkpoints_to_drop(_planned(grid, options.runs), options.runs)
    for item in dropped:
        if not options.dry_run:
            drop(item)
        print(f"  {item.run_dir}: {item.files} checkpoints, {quantity(item.size_bytes)}B")
    verb = "would drop" if options.dry_run else "dropped"
    total = quantity(sum(item.size_bytes for item in dropped))
    print(f"{grid.name}: {verb} the checkpoints of {len(dropped)} finished cells, {total}B")
    return 0


def export(options: argparse.Namespace) -> int:
    """Write the study and its runs to one archive."""
    grid = load_grid(options.grid)
    _check_runs(options.runs)
    plan = _planned(grid, options.runs)
    target = options.to or Path(f"{grid.name}.tar.gz")
    done = export_study(grid, plan, runs=options.runs, results=options.results, target=target)
    if done.at_work:
        print(f"warning: at work and left out: {', '.join(done.at_work)}", file=sys.stderr)
    print(f"{done.path}: {done.runs} runs ({summary(plan)}), {quantity(done.size_bytes)}B")
    return 0


def _prepare(grid: Grid, settings: Settings) -> None:
    """What must exist once before cells start side by side: the data and the store's schema."""
    for dataset, vocab_size in sorted({(c.spec.dataset, c.spec.shape.vocab_size) for c in grid.cells}):
        data = DATASETS.get(dataset).prepare(vocab_size, settings.data)
        of_data = [
            c.spec for c in grid.cells if (c.spec.dataset, c.spec.shape.vocab_size) == (dataset, vocab_size)
        ]
        data.check_windows(max(spec.shape.seq_len for spec in of_data))
    if settings.tracking:
        try:
            prepare_store(store_uri(settings.runs), settings.runs)
        except UserError as error:
            print(f"warning: {error}; cells train all the same", file=sys.stderr)


def _planned(grid: Grid, runs: Path) -> list[PlannedCell]:
    """The plan, with what Slurm's queue holds of it; without the queue's word, a warning."""
    try:
        queue = read_queue(runs)  # before the records: a job that has left the queue has written its own
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)
        queue = {}
    return with_queue(make_plan(grid, runs), queue)


def _tell_damaged(planned: Sequence[PlannedCell]) -> None:
    for item in planned:
        if item.state is CellState.DAMAGED:
            print(f"  damaged: {item.cell.label} ({item.problem})", file=sys.stderr, flush=True)


def _check_runs(runs: Path) -> None:
    if runs.exists() and not runs.is_dir():
        raise UserError(f"{runs}: is not a folder; choose another --runs")


def _check_folders(grid: Grid, options: argparse.Namespace) -> None:
    """Refuse folders that cannot be written before anything is written to any of them."""
    _check_runs(options.runs)
    _check_writable(options.results / grid.name, "--results")
    if options.command == "run":
        _check_writable(options.runs, "--runs")
        if not _existing(options.data).is_dir():
            raise UserError(f"{options.data}: is not a folder; choose another --data")


def _existing(folder: Path) -> Path:
    """The part of ``folder`` that is there already."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _check_writable(folder: Path, option: str) -> None:
    existing = _existing(folder)
    if not existing.is_dir():
        what = f"{existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        what = f"{existing} is read-only"
    else:
        return
    raise UserError(f"{folder}: cannot be written ({what}); make it writable or choose another {option}")


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": list_grids,
    "plan": plan,
    "run": run,
    "status": status,
    "sync": synchronise,
    "prune": prune,
    "export": export,
}
