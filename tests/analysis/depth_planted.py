"""Made-up dynamics of a run: magnitudes that grow over depth, gradients that fall, weights that sum to 1."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.plan_file import PlanCell

STEPS = (1, 50, 100, 200)


def write_dynamics(
    folder: Path, cell: PlanCell, *, spike_at: int | None = None, collapsed: bool = False
) -> None:
    """Write dynamics/<spec_id>.parquet of ``cell``; the additive stream reads with weight 1.

    Args:
        folder: of the study.
        cell: the run; its size names the depth.
        spike_at: sublayer whose output is 40 times as large.
        collapsed: every read attends to its last source alone.
    """
    depth = int(cell.size[1:].partition("w")[0])
    rng = np.random.default_rng(1 + depth)
    rows: list[dict[str, Any]] = []
    growth = 0.4 if cell.stream == "additive" else 0.05
    for step in STEPS:
        for site in range(2 * depth + 1):
            kind = "output" if site == 2 * depth else ("attention", "mlp")[site % 2]
            common = {"step": step, "site": site, "kind": kind}
            if kind != "output":
                value = np.exp(growth * site) * (1 + step / 200) * (40.0 if site == spike_at else 1.0)
                rows.append(common | {"source": -1, "quantity": "output", "value": float(value)})
                rows.append(common | {"source": -1, "quantity": "hidden", "value": float(2 * value)})
            if kind == "mlp":
                falls = 1e-3 * np.exp(-growth * site)
                rows.append(common | {"source": -1, "quantity": "gradient", "value": float(falls)})
            weights = np.ones(site + 1) if cell.stream == "additive" else rng.dirichlet(np.ones(site + 1))
            if collapsed:
                weights = np.eye(site + 1)[-1]
            rows += [
                common | {"source": s, "quantity": "weight", "value": float(w)} for s, w in enumerate(weights)
            ]
            if cell.stream != "additive":
                entropy = float(-(weights * np.log(np.maximum(weights, 1e-300))).sum())
                rows.append(common | {"source": -1, "quantity": "entropy", "value": entropy})
    target = folder / "dynamics"
    target.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_parquet(target / f"{cell.spec_id}.parquet", index=False)
