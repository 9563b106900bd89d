"""Throughput of the arms of every size, timed side by side once the cells are done, kept in plan.json."""

from pathlib import Path

from analysis.plan_file import Throughput
from experiments.settings import Settings
from experiments.throughput import ThroughputRatio, measure
from sweeps.grid import Cell, Grid
from sweeps.plan import read_throughput, write_plan


def unmeasured(grid: Grid, study: Path) -> list[list[Cell]]:
    """The sizes (one cell of every arm, the baseline first) whose ratios ``study``/plan.json lacks."""
    kept = {row.spec_ids for row in read_throughput(grid, study)}
    return [cells for cells in _sizes(grid) if not _pairs(cells) <= kept]


def measure_missing(grid: Grid, study: Path, settings: Settings) -> None:
    """Measure the sizes of ``grid`` whose ratios ``study``/plan.json lacks; write it after each size."""
    kept = read_throughput(grid, study)
    for cells in unmeasured(grid, study):
        ratios = measure([cell.spec for cell in cells], settings)
        told = ", ".join(f"{ratio.variant} {ratio.ratio:.3f}" for ratio in ratios)
        print(f"  throughput at {cells[0].size}, of {cells[0].spec.stream.variant}: {told}", flush=True)
        kept = [row for row in kept if row.size != cells[0].size]
        kept += [_row(cells[0], cell, ratio) for cell, ratio in zip(cells[1:], ratios, strict=True)]
        write_plan(grid, study, kept)


def _pairs(cells: list[Cell]) -> set[tuple[str, str]]:
    return {(cells[0].spec.spec_id, cell.spec.spec_id) for cell in cells[1:]}


def _sizes(grid: Grid) -> list[list[Cell]]:
    """One cell of every arm for each size of the ladder, the baseline first."""
    sizes: dict[str, dict[str, Cell]] = {}
    for cell in grid.cells:
        if cell.role == "ladder":
            sizes.setdefault(cell.size, {}).setdefault(cell.spec.stream.variant, cell)
    order = [arm.variant for arm in grid.arms]
    return [[cells[variant] for variant in order if variant in cells] for cells in sizes.values()]


def _row(baseline: Cell, cell: Cell, ratio: ThroughputRatio) -> Throughput:
    return Throughput(
        size=cell.size,
        variant=ratio.variant,
        baseline=ratio.baseline,
        spec_ids=(baseline.spec.spec_id, cell.spec.spec_id),
        ratio=round(ratio.ratio, 6),
        lo=round(ratio.lo, 6),
        hi=round(ratio.hi, 6),
        rounds=ratio.rounds,
        machine=ratio.machine,
    )
