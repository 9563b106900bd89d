"""How much the seed moves a loss, from sizes that were trained at several seeds."""

import math
from typing import Any

import numpy as np
import pandas as pd


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


def _arm(runs: pd.DataFrame) -> dict[str, Any]:
    sizes = {}
    squares, dof = 0.0, 0
    for (size, _), group in runs.groupby(["size", "budget"], sort=True):
        n = len(group)
        sd = float(group["val_loss"].std(ddof=1)) if n > 1 else None
        sizes[str(size)] = {"n": n, "sd": sd}
        if sd is not None:
            squares, dof = squares + sd**2 * (n - 1), dof + n - 1
    return {"sd": math.sqrt(squares / dof) if dof else None, "dof": dof, "sizes": sizes}


def _pairs(runs: pd.DataFrame, baseline: str, variant: str, pooled: float | None) -> dict[str, Any]:
    left = runs[runs["variant"] == baseline].set_index("pair_id")
    right = runs[runs["variant"] == variant].set_index("pair_id")
    common = sorted(set(left.index) & set(right.index))
    difference = left.loc[common, "val_loss"].to_numpy(float) - right.loc[common, "val_loss"].to_numpy(float)
    keys = list(zip(left.loc[common, "size"], left.loc[common, "budget"], strict=True))
    squares, dof = 0.0, 0
    for key in dict.fromkeys(keys):
        inside = difference[[k == key for k in keys]]
        squares, dof = squares + float(((inside - inside.mean()) ** 2).sum()), dof + len(inside) - 1
    sd = math.sqrt(squares / dof) if dof else None
    correlation = None
    if sd is not None and pooled:
        correlation = float(np.clip(1 - sd**2 / (2 * pooled**2), -1.0, 1.0))
    return {"sd_difference": sd, "correlation": correlation, "dof": dof}
