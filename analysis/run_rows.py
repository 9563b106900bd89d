"""What a row of runs.csv must hold beyond the type of its cells: checked once, where the file is read."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.losses import MAX_LOSS, MIN_LOSS
from analysis.plan_file import Plan, PlanCell
from analysis.schema import RUN_COLUMNS, Exclusion, Status
from attnres.errors import UserError

_PLANNED = ("variant", "stream", "seed", "lr")
"""Facts that a row shares with its cell of the plan."""
_SIGNED = ("seed", "data_seed", "val_loss")
"""Numbers not checked for their sign: seeds have one, the loss is held to its range where it is used."""
_NUMBERS = tuple(
    column.name for column in RUN_COLUMNS if column.kind in ("int", "float") and column.name not in _SIGNED
)


def check_rows(path: Path, table: pd.DataFrame, plan: Plan) -> None:
    """Refuse rows that contradict themselves, each other, or the plan.

    Args:
        path: the file, for the message.
        table: its rows, typed (`analysis.tabular.read_table`).
        plan: of the same study.

    Raises:
        UserError: one line that names the file, the run, the column and the value.
    """
    seen: set[str] = set()
    for row in table.to_dict("records"):
        try:
            check_row({str(name): value for name, value in row.items()}, seen)
            _check_plan(row, plan.by_spec.get(row["spec_id"]))
        except ValueError as error:
            advice = "make the table again (python -m analysis table)"
            raise UserError(f"{path}: run {row['spec_id'] or '?'} {error}; {advice}") from None


def check_row(row: Mapping[str, Any], seen: set[str]) -> None:
    """Refuse (``ValueError``) a row that contradicts itself or has a spec_id of ``seen``, which it joins."""
    if not row["spec_id"]:
        raise ValueError("has no spec_id")
    if row["spec_id"] in seen:
        raise ValueError("stands twice")
    seen.add(row["spec_id"])
    if row["status"] not in set(Status):
        raise ValueError(f"has status '{row['status']}', not {', '.join(Status)}")
    if pd.isna(row["seed"]):
        raise ValueError("has no seed")
    for name in _NUMBERS:
        if not pd.isna(row[name]) and row[name] < 0:
            raise ValueError(f"has {name} {row[name]:g}, which cannot be negative")
    _check_exclusion(row)
    _check_compute(row)


def _check_compute(row: Mapping[str, Any]) -> None:
    """``compute`` is the sum of its parts x tokens, where a run says its parts (imported ones need not)."""
    parts = [row[f"flops_per_token_{part}"] for part in ("matmul", "attention", "head", "stream")]
    if any(pd.isna(value) for value in (*parts, row["tokens"], row["compute"])):
        return
    total = sum(parts) * row["tokens"]
    if not math.isclose(row["compute"], total, rel_tol=1e-9):
        raise ValueError(f"has compute {row['compute']:.6g}, and its parts x tokens are {total:.6g}")


def _check_exclusion(row: Mapping[str, Any]) -> None:
    if row["exclusion_reason"] not in set(Exclusion):
        raise ValueError(f"has exclusion_reason '{row['exclusion_reason']}', not {', '.join(Exclusion)}")
    if pd.isna(row["excluded"]):
        raise ValueError("has no value of excluded")
    if row["excluded"] != (row["exclusion_reason"] != Exclusion.NONE):
        raise ValueError(
            f"has excluded {str(row['excluded']).lower()} beside reason {row['exclusion_reason']}"
        )
    if row["excluded"]:
        return
    if row["status"] != Status.FINISHED:
        raise ValueError(f"is not excluded, and its status is {row['status']}")
    loss = row["val_loss"]
    if not MIN_LOSS <= loss <= MAX_LOSS:
        raise ValueError(
            f"is not excluded and has val_loss {loss:.4g}; "
            f"{MIN_LOSS:g} to {MAX_LOSS:g} nats a token are losses"
        )
    for name in ("tokens", "compute", "budget"):
        if pd.isna(row[name]) or row[name] <= 0:
            raise ValueError(f"is not excluded and has {name} {row[name]}, not a positive number")


def _check_plan(row: Mapping[Any, Any], cell: PlanCell | None) -> None:
    if cell is None:
        return
    for name in _PLANNED:
        planned = getattr(cell, name)
        if not pd.isna(row[name]) and row[name] != planned:
            raise ValueError(f"has {name} {row[name]}; the plan says {planned}")
