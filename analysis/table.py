"""runs/<spec_id>/ and plan.json -> runs.csv, curves.parquet and dynamics/: the same bytes from the same runs.

Every planned run is a row, whatever became of it; a run directory that no plan names is a row too
(off_grid). Numbers that are not finite become empty cells: a diverged loss is a status, not a value.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.curves import write_curves
from analysis.dynamics import copy_dynamics
from analysis.exclusions import exclusion_of, mark_duplicates
from analysis.losses import MAX_LOSS, MIN_LOSS
from analysis.plan_file import PLAN_FILE, Plan, PlanCell, read_plan
from analysis.schema import EXCLUSION_COLUMNS, RUN_COLUMNS, SCHEMA_VERSION, Column, Exclusion, Status
from analysis.study import CURVES_FILE, RUNS_FILE
from analysis.tabular import read_table, write_table
from attnres.errors import UserError

RECORD_FILE = "record.json"

_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}


@dataclass(frozen=True)
class TableSummary:
    """What `build_table` found."""

    counts: dict[str, int]
    """Planned runs by status."""
    stray: tuple[str, ...]
    """Run directories that no plan names."""
    excluded: dict[str, int]
    """Runs left out of the fits, by reason."""

    @property
    def planned(self) -> int:
        """Runs of the plan."""
        return sum(self.counts.values())

    @property
    def complete(self) -> bool:
        """Whether every planned run has finished and no run is stray."""
        return self.counts.get(Status.FINISHED, 0) == self.planned and not self.stray

    def line(self) -> str:
        """One line for people: "15 planned: 13 finished, 1 failed, 1 missing; 1 not in plan"."""
        parts = [f"{self.counts[s]} {s.value}" for s in Status if self.counts.get(s)]
        text = f"{self.planned} planned: {', '.join(parts) or 'none'}"
        return f"{text}; {len(self.stray)} not in plan" if self.stray else text


def build_table(study_folder: Path, runs_root: Path) -> TableSummary:
    """Write runs.csv, curves.parquet and dynamics/ of the study.

    Args:
        study_folder: results/<study>, with its plan.json.
        runs_root: folder of the run directories.

    Raises:
        UserError: no plan, no run directories, a record that breaks the contract (it is named), or a
            runs.csv whose finished runs are not under ``runs_root``.
    """
    plan = read_plan(study_folder)
    if not runs_root.is_dir():
        raise UserError(f"{runs_root}: no such folder of run directories; name it with --runs")
    _check_nothing_lost(study_folder / RUNS_FILE, runs_root)
    rows = [_planned_row(cell, runs_root / cell.spec_id, plan) for cell in plan.cells]
    stray = _stray_runs(study_folder, runs_root, plan)
    rows += [_stray_row(runs_root / name) for name in stray]
    for row in rows:
        cell = plan.by_spec.get(row["spec_id"])
        reason = exclusion_of(row, None if cell is None else cell.tokens)
        row["excluded"], row["exclusion_reason"] = reason is not Exclusion.NONE, reason.value
    mark_duplicates(rows, {cell.spec_id: _cell_key(cell) for cell in plan.cells})
    write_table(study_folder / RUNS_FILE, (*RUN_COLUMNS, *EXCLUSION_COLUMNS), rows)
    write_curves(study_folder / CURVES_FILE, runs_root, [row["spec_id"] for row in rows])
    copy_dynamics(study_folder, runs_root, [row["spec_id"] for row in rows])
    counts: dict[str, int] = {}
    excluded: dict[str, int] = {}
    for row in rows:
        if row["spec_id"] in plan.by_spec:
            counts[row["status"]] = counts.get(row["status"], 0) + 1
        if row["excluded"]:
            excluded[row["exclusion_reason"]] = excluded.get(row["exclusion_reason"], 0) + 1
    return TableSummary(counts, tuple(stray), excluded)


def _check_nothing_lost(path: Path, runs_root: Path) -> None:
    """A mistyped --runs must not turn the finished runs of a table into missing ones."""
    if not path.exists():
        return
    table = read_table(path, (*RUN_COLUMNS, *EXCLUSION_COLUMNS), required=False)
    finished = table.loc[table["status"] == Status.FINISHED, "spec_id"]
    lost = [spec_id for spec_id in finished if not (runs_root / spec_id / RECORD_FILE).exists()]
    if lost:
        raise UserError(
            f"{path}: {len(lost)} of its {len(finished)} finished runs are not in {runs_root} "
            f"(first: {lost[0]}); name their folder with --runs, or delete the file to make it without them"
        )


def read_record(path: Path) -> dict[str, Any]:
    """The record at ``path`` as a row of runs.csv; numbers that are not finite become None.

    Raises:
        UserError: not JSON, a column missing, of the wrong type, or of another schema version.
    """
    try:
        record = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); delete it and run the cell again") from None
    if not isinstance(record, dict):
        raise UserError(f"{path}: not a record but a {type(record).__name__}")
    if record.get("schema_version") != SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema_version {record.get('schema_version')!r}, this analysis reads {SCHEMA_VERSION}"
        )
    row = {column.name: _checked(path, column, record) for column in RUN_COLUMNS}
    if row["status"] not in set(Status) - {Status.MISSING}:
        raise UserError(f"{path}: status '{row['status']}' is none of a record")
    _check_sums(path, row)
    return row


def _checked(path: Path, column: Column, record: Mapping[str, Any]) -> Any:
    if column.name not in record:
        raise UserError(f"{path}: no {column.name}")
    value = record[column.name]
    if value is None and column.nullable:
        return None
    good = isinstance(value, _TYPES[column.kind]) and (column.kind == "bool" or not isinstance(value, bool))
    if not good:
        raise UserError(f"{path}: {column.name} is {value!r}, not a {column.kind}")
    if column.kind != "float":
        return value
    if math.isfinite(value):
        return float(value)
    if column.nullable:
        return None
    raise UserError(f"{path}: {column.name} is {value}, which is not finite")


def _check_sums(path: Path, row: Mapping[str, Any]) -> None:
    per_token = sum(row[f"flops_per_token_{part}"] for part in ("matmul", "attention", "head", "stream"))
    if not math.isclose(row["compute"], per_token * row["tokens"], rel_tol=1e-9):
        raise UserError(
            f"{path}: compute {row['compute']:.6g} is not the sum of its parts x tokens "
            f"{per_token * row['tokens']:.6g}"
        )
    loss = row["val_loss"]
    if row["status"] == Status.FINISHED and (loss is None or not MIN_LOSS <= loss <= MAX_LOSS):
        raise UserError(f"{path}: finished with val_loss {loss}; a loss is {MIN_LOSS:g} to {MAX_LOSS:g} nats")


def _planned_row(cell: PlanCell, run_dir: Path, plan: Plan) -> dict[str, Any]:
    path = run_dir / RECORD_FILE
    if not path.exists():
        return _missing_row(cell, plan)
    row = read_record(path)
    facts = {
        "spec_id": cell.spec_id,
        "variant": cell.variant,
        "seed": cell.seed,
        "lr": cell.lr,
        "numerics": plan.numerics,
    }
    for name, planned in facts.items():
        if row[name] != planned:
            raise UserError(
                f"{path}: {name} is {row[name]!r}, the plan says {planned!r}; "
                "was the directory copied or renamed?"
            )
    return row


def _missing_row(cell: PlanCell, plan: Plan) -> dict[str, Any]:
    row: dict[str, Any] = {column.name: "" if column.kind == "str" else None for column in RUN_COLUMNS}
    return row | {
        "spec_id": cell.spec_id,
        "stream": cell.stream,
        "variant": cell.variant,
        "stream_options": cell.stream_options,
        "seed": cell.seed,
        "numerics": plan.numerics,
        "budget": cell.budget,
        "tokens": cell.tokens,
        "lr": cell.lr,
        "status": Status.MISSING.value,
        "attempts": 0,
        "schema_version": SCHEMA_VERSION,
    }


def _stray_runs(study_folder: Path, runs_root: Path, plan: Plan) -> list[str]:
    """Run directories with a record that neither this plan nor one beside it names."""
    known = set(plan.by_spec)
    for path in sorted(study_folder.resolve().parent.glob(f"*/{PLAN_FILE}")):
        if path.parent != study_folder.resolve():
            known |= set(read_plan(path.parent).by_spec)
    if not runs_root.is_dir():
        return []
    return sorted(
        entry.name
        for entry in runs_root.iterdir()
        if entry.name not in known and (entry / RECORD_FILE).exists()
    )


def _stray_row(run_dir: Path) -> dict[str, Any]:
    return read_record(run_dir / RECORD_FILE)


def _cell_key(cell: PlanCell) -> tuple[Any, ...]:
    return (cell.variant, cell.size, cell.budget, cell.seed, cell.lr, cell.role)
