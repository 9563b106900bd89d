"""The headline again with something left out, corrupted, resampled or rounded."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from analysis.multipliers.base import LEVEL, Estimate, PairedArms, RefusalError
from analysis.multipliers.clustered import rungs_where
from analysis.multipliers.pair_slope import pair_slope
from analysis.pair_bootstrap import bootstrap_pairs

CORRUPTION = 0.01
"""Relative error planted in one loss at a time; a diverging or mislabelled run is off by more."""

DECIMALS = (3, 2)
"""Roundings tried: papers print three decimals."""


def variations(arms: PairedArms) -> Iterator[dict[str, Any]]:
    """Rows of sensitivity.json: sizes left out, one loss corrupted, the bootstrap, rounding."""
    for size in dict.fromkeys(arms.sizes):
        rest = rungs_where(arms, np.array([other != size for other in arms.sizes]))
        yield row_of(arms, "leave_one_size_out", size, partial(pair_slope, rest, LEVEL))
    rest = rungs_where(arms, arms.budget < arms.budget.max())
    largest = f"{arms.budget.max():.4g}"
    yield row_of(arms, "leave_largest_budget_out", largest, partial(pair_slope, rest, LEVEL))
    yield _worst_corruption(arms)
    yield _bootstrap(arms)
    for decimals in DECIMALS:
        rounded = partial(pair_slope, _rounded(arms, decimals), LEVEL)
        yield row_of(arms, "rounding", f"{decimals} decimals", rounded)


def _bootstrap(arms: PairedArms) -> dict[str, Any]:
    name = "sizes, then seeds; percentile"
    if arms.clustered:
        name = "clusters, then trunks; percentile"
    try:
        found = bootstrap_pairs(arms)
    except RefusalError as refusal:
        return refused(arms.variant, "bootstrap", name, refusal)
    return {
        "variant": arms.variant,
        "kind": "bootstrap",
        "value": name,
        "compute_multiplier": math.exp(found.ln_m),
        "lo": math.exp(found.lo),
        "hi": math.exp(found.hi),
        "status": f"{found.draws} draws, {found.failed} without an estimate; too narrow at few sizes",
    }


def _worst_corruption(arms: PairedArms) -> dict[str, Any]:
    """The largest move of m when one loss of one arm is off by `CORRUPTION`."""
    rows = []
    for i, size in enumerate(arms.sizes):
        for sign in (1, -1):
            factor = np.ones(len(arms.sizes))
            factor[i] += sign * CORRUPTION
            spoilt = dataclasses.replace(arms, loss_variant=arms.loss_variant * factor)
            name = f"{size} {sign * CORRUPTION:+.0%}"
            rows.append(row_of(arms, "corrupted_cell", name, partial(pair_slope, spoilt, LEVEL)))
    answered = [row for row in rows if row["compute_multiplier"] is not None]
    if not answered:
        return rows[0]
    middle = float(np.median([row["compute_multiplier"] for row in answered]))
    return max(answered, key=lambda row: abs(math.log(row["compute_multiplier"] / middle)))


def _rounded(arms: PairedArms, decimals: int) -> PairedArms:
    return dataclasses.replace(
        arms,
        loss_baseline=np.round(arms.loss_baseline, decimals),
        loss_variant=np.round(arms.loss_variant, decimals),
    )


def row_of(arms: PairedArms, kind: str, value: str, estimate: Callable[[], Estimate]) -> dict[str, Any]:
    """A row of sensitivity.json; a refusal is a row without numbers."""
    try:
        found = estimate()
    except RefusalError as refusal:
        return refused(arms.variant, kind, value, refusal)
    return {
        "variant": arms.variant,
        "kind": kind,
        "value": value,
        "compute_multiplier": found.compute_multiplier,
        "lo": math.exp(found.lo),
        "hi": math.exp(found.hi),
        "status": found.status,
    }


def refused(variant: str, kind: str, value: str, refusal: RefusalError) -> dict[str, Any]:
    """A row of sensitivity.json without numbers."""
    return {
        "variant": variant,
        "kind": kind,
        "value": value,
        "compute_multiplier": None,
        "lo": None,
        "hi": None,
        "status": f"refused: {refusal}",
    }
