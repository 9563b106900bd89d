"""Everything the paper's page and figures show, computed once and written as tables before it is drawn."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.fit_result import FitResult
from analysis.paper import claim, elsewhere, here, table2
from analysis.paper.table2 import AXES, PLOTTED, SIX_ND
from analysis.schema import MULTIPLIER_COLUMNS
from analysis.study import fit_name
from analysis.tabular import format_value, write_table
from attnres.files import write_json, write_text

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Numbers:
    """Rows of each table of results/paper/."""

    multipliers: Rows
    laws: Mapping[str, FitResult]
    """arm -> power law on the plotted axis, compute in PFLOP/s-days."""
    laws_6nd: Mapping[str, FitResult]
    sizes: Rows
    tests: Rows
    sensitivity: Rows
    curves: Rows
    rounding: Rows
    differences: Rows
    elsewhere: Rows
    marin: Rows
    here: Rows

    def answer(self, variant: str) -> dict[str, Any]:
        """The re-analysis of ``variant``: pair + slope, E = 0, compute 6 N D."""
        return next(r for r in self.multipliers if r["variant"] == variant and r["compute_axis"] == SIX_ND)


def compute_numbers(results: Path) -> Numbers:
    """All numbers; ``results`` holds this project's own studies."""
    fitted = table2.laws(PLOTTED)
    return Numbers(
        multipliers=[row for axis in AXES for row in table2.multiplier_rows(axis)],
        laws=fitted,
        laws_6nd=table2.laws(SIX_ND),
        sizes=list(table2.size_rows(SIX_ND)),
        tests=list(table2.slope_tests(SIX_ND)),
        sensitivity=list(table2.sensitivity_rows(SIX_ND)),
        curves=list(claim.curve_rows(fitted)),
        rounding=list(claim.rounding_rows()),
        differences=list(elsewhere.difference_rows()),
        elsewhere=list(elsewhere.multiplier_rows()),
        marin=list(elsewhere.marin_rows()),
        here=list(here.study_rows(results)),
    )


def write_numbers(folder: Path, numbers: Numbers) -> None:
    """One CSV a table, one JSON a law."""
    write_table(folder / "multipliers.csv", MULTIPLIER_COLUMNS, numbers.multipliers)
    for name in (
        "sizes",
        "tests",
        "sensitivity",
        "curves",
        "rounding",
        "differences",
        "elsewhere",
        "marin",
        "here",
    ):
        write_text(folder / f"{name}.csv", _csv(getattr(numbers, name)))
    fits = folder / "fits"
    fits.mkdir(exist_ok=True)
    for axis, laws in ((PLOTTED, numbers.laws), (SIX_ND, numbers.laws_6nd)):
        for arm, law in laws.items():
            write_json(fits / f"{fit_name(law.form, f'{arm}-{axis}')}.json", law.model_dump(mode="json"))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([format_value(row.get(name)) for name in columns] for row in rows)
    return buffer.getvalue()
