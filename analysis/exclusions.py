"""Why a run is left out of the fits. Rows stay in the table; they are marked, counted and listed."""

from collections.abc import Mapping
from typing import Any

from analysis.schema import Exclusion, Status

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
