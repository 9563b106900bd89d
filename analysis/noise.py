"""How much the seed moves a loss, from sizes that were trained at several seeds.

Budgets whose runs branch from the same trunks share their noise: their squares are averaged and their degrees
of freedom count once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.clusters import linked, num_groups


def measure_noise(cells: pd.DataFrame, baseline: str) -> dict[str, Any]:
    """Seed sd within sizes, pooled over them; None where no size has two finished seeds.

    Returns:
        by_arm: {variant: {sd, dof, sizes: {size: {sd, n}}}}; pooled: {sd, dof}; pairs: {variant:
        {sd_difference, correlation, dof}}, correlation = 1 - var(difference) / (2 x pooled variance).
    """
    used = cells[(cells["role"] == "ladder") & ~cells["excluded"].astype(bool)]
    by_arm = {str(arm): _arm(runs) for arm, runs in used.groupby("variant", sort=True)}
    squares = sum((arm["sd"] or 0.0) ** 2 * arm["dof"] for arm in by_arm.values())
    dof = sum(arm["dof"] for arm in by_arm.values())
    pooled = math.sqrt(squares / dof) if dof else None
    pairs = {
        arm: _pairs(used, baseline, arm, pooled) for arm in by_arm if arm != baseline and baseline in by_arm
    }
    return {"by_arm": by_arm, "pooled": {"sd": pooled, "dof": dof}, "pairs": pairs}


@dataclass(frozen=True)
class _Spread:
    """Squared deviations within one size and budget."""

    squares: float
    dof: int
    trunks: tuple[str, ...]


def _arm(runs: pd.DataFrame) -> dict[str, Any]:
    sizes = {}
    spreads = []
    for (size, _), group in runs.groupby(["size", "budget"], sort=True):
        n = len(group)
        sd = float(group["val_loss"].std(ddof=1)) if n > 1 else None
        sizes[str(size)] = {"n": n, "sd": sd}
        if sd is not None:
            spreads.append(_Spread(sd**2 * (n - 1), n - 1, tuple(group["trunk"])))
    sd, dof = _pooled(spreads)
    return {"sd": sd, "dof": dof, "sizes": sizes}


def _pairs(runs: pd.DataFrame, baseline: str, variant: str, pooled: float | None) -> dict[str, Any]:
    left = runs[runs["variant"] == baseline].set_index("pair_id")
    right = runs[runs["variant"] == variant].set_index("pair_id")
    common = sorted(set(left.index) & set(right.index))
    left, right = left.loc[common], right.loc[common]
    difference = left["val_loss"].to_numpy(float) - right["val_loss"].to_numpy(float)
    keys = list(zip(left["size"], left["budget"], strict=True))
    spreads = []
    for key in dict.fromkeys(keys):
        at = np.array([k == key for k in keys])
        inside = difference[at]
        squares = float(((inside - inside.mean()) ** 2).sum())
        spreads.append(_Spread(squares, len(inside) - 1, (*left["trunk"][at], *right["trunk"][at])))
    sd, dof = _pooled(spreads)
    correlation = None
    if sd is not None and pooled:
        correlation = float(np.clip(1 - sd**2 / (2 * pooled**2), -1.0, 1.0))
    return {"sd_difference": sd, "correlation": correlation, "dof": dof}


def _pooled(spreads: Sequence[_Spread]) -> tuple[float | None, int]:
    """Standard deviation and its degrees of freedom; spreads that share trunks count as their mean."""
    clusters = linked([spread.trunks for spread in spreads])
    total, dof = 0.0, 0
    for cluster in range(num_groups(clusters)):
        own = [s for s, c in zip(spreads, clusters, strict=True) if c == cluster and s.dof > 0]
        if own:
            most = max(s.dof for s in own)
            total += sum(s.squares for s in own) * most / sum(s.dof for s in own)
            dof += most
    return (math.sqrt(total / dof) if dof else None), dof
