"""throughput.csv of a study: the arms of every size, timed side by side once the cells are done."""

import csv
import io
from pathlib import Path

from attnres.files import write_text
from experiments.settings import Settings
from experiments.throughput import measure
from sweeps.grid import Cell, Grid

THROUGHPUT_FILE = "throughput.csv"
COLUMNS = ("size", "variant", "baseline", "ratio", "lo", "hi", "rounds", "machine")


def measure_missing(grid: Grid, study: Path, settings: Settings) -> None:
    """Measure the sizes of ``grid`` that ``study``/throughput.csv lacks, and write it whole."""
    path = study / THROUGHPUT_FILE
    rows = _read(path)
    present = {(row["size"], row["variant"]) for row in rows}
    for size, cells in _sizes(grid).items():
        if len(cells) < 2 or all((size, cell.spec.stream.variant) in present for cell in cells[1:]):
            continue
        ratios = measure([cell.spec for cell in cells], settings)
        told = ", ".join(f"{ratio.variant} {ratio.ratio:.3f}" for ratio in ratios)
        print(f"  throughput at {size}, of {cells[0].spec.stream.variant}: {told}", flush=True)
        rows = [row for row in rows if row["size"] != size] + [
            {
                "size": size,
                "variant": ratio.variant,
                "baseline": ratio.baseline,
                "ratio": f"{ratio.ratio:.6f}",
                "lo": f"{ratio.lo:.6f}",
                "hi": f"{ratio.hi:.6f}",
                "rounds": str(ratio.rounds),
                "machine": ratio.machine,
            }
            for ratio in ratios
        ]
        _write(path, rows)


def _sizes(grid: Grid) -> dict[str, list[Cell]]:
    """One cell of every arm for each size of the ladder, the baseline first."""
    sizes: dict[str, dict[str, Cell]] = {}
    for cell in grid.cells:
        if cell.role == "ladder":
            sizes.setdefault(cell.size, {}).setdefault(cell.spec.stream.variant, cell)
    order = [arm.variant for arm in grid.arms]
    return {size: [cells[variant] for variant in order if variant in cells] for size, cells in sizes.items()}


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, buffer.getvalue())
