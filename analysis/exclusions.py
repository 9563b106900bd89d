"""Why a run is left out of the fits. Rows stay in the table; they are marked, counted and listed.

A rule leaves out what diverged, is incomplete, stands twice or is not planned. Nothing is ever called an
outlier by itself: a person does, run by run and with a reason, in exclusions.csv beside plan.json. The
report counts those runs, quotes the reasons and gives the headline with them put back.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.plan_file import Plan
from analysis.schema import OUTLIER_COLUMNS, Exclusion, Status
from analysis.tabular import read_table
from attnres.errors import UserError

EXCLUSIONS_FILE = "exclusions.csv"

UNFINISHED = (Status.FAILED, Status.INTERRUPTED, Status.MISSING)


def exclusion_of(row: Mapping[str, Any], planned_tokens: int | None) -> Exclusion:
    """The reason to leave out ``row``, or NONE.

    Args:
        row: a row of runs.csv.
        planned_tokens: of the plan; None for a run that is not in it.

    A finished run counts only with a loss and at the planned number of tokens: a loss from the middle of
    a schedule is not a point of the law.
    """
    if planned_tokens is None:
        return Exclusion.OFF_GRID
    if row["status"] == Status.DIVERGED:
        return Exclusion.DIVERGED
    if row["status"] in UNFINISHED or row["val_loss"] is None or row["tokens"] != planned_tokens:
        return Exclusion.INCOMPLETE
    if row["steps"] is not None and row["steps"] * row["batch_tokens"] < planned_tokens:
        return Exclusion.INCOMPLETE
    return Exclusion.NONE


def mark_duplicates(rows: list[dict[str, Any]], keys: Mapping[str, tuple[Any, ...]]) -> None:
    """Mark all but the first finished run of equal key (arm, size, budget, seed, rate, role) as duplicates.

    Args:
        rows: rows of runs.csv in their order, changed in place.
        keys: spec_id -> key; rows without a key are left alone.
    """
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        key = keys.get(row["spec_id"])
        if key is None or row["excluded"]:
            continue
        if key in seen:
            row["excluded"], row["exclusion_reason"] = True, Exclusion.DUPLICATE.value
        seen.add(key)


def read_outliers(folder: Path, plan: Plan) -> dict[str, str]:
    """spec_id -> reason, from exclusions.csv; empty where the study has none.

    Raises:
        UserError: a run that is not planned or stands twice, or no reason; file and run are named.
    """
    path = folder / EXCLUSIONS_FILE
    if not path.exists():
        return {}
    table = read_table(path, OUTLIER_COLUMNS)
    reasons: dict[str, str] = {}
    for spec_id, reason in zip(table["spec_id"], table["reason"], strict=True):
        if spec_id not in plan.by_spec:
            raise UserError(f"{path}: run '{spec_id}' is not in the plan; take its spec_id from runs.csv")
        if spec_id in reasons:
            raise UserError(f"{path}: run {spec_id} stands twice; keep one line")
        if not reason.strip():
            raise UserError(f"{path}: run {spec_id} has no reason; say why it is to be left out")
        reasons[spec_id] = reason.strip()
    return reasons


def mark_outliers(path: Path, runs: pd.DataFrame, reasons: Mapping[str, str]) -> pd.DataFrame:
    """``runs`` (the file ``path``) with the runs in ``reasons`` left out, but for those that a rule left out.

    Raises:
        UserError: a run that the file calls an outlier and ``reasons`` does not.
    """
    called = runs.loc[runs["exclusion_reason"] == Exclusion.OUTLIER, "spec_id"]
    silent = [spec_id for spec_id in called if spec_id not in reasons]
    if silent:
        raise UserError(
            f"{path}: run {silent[0]} is called an outlier and {EXCLUSIONS_FILE} does not say why"
        )
    chosen = runs["spec_id"].isin(list(reasons)) & ~runs["excluded"].astype(bool)
    marked = runs.copy()
    marked.loc[chosen, "excluded"] = True
    marked.loc[chosen, "exclusion_reason"] = Exclusion.OUTLIER.value
    return marked


def put_back(cells: pd.DataFrame) -> pd.DataFrame:
    """``cells`` as they would be had nobody left a run out by hand."""
    outliers = cells["exclusion_reason"] == Exclusion.OUTLIER
    restored = cells.copy()
    restored.loc[outliers, "excluded"] = False
    restored.loc[outliers, "exclusion_reason"] = Exclusion.NONE.value
    return restored
