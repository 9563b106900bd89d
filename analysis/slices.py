"""Slices of equal budget of every arm, for fits/isoflop.json: parabolas, and the compute-optimal size."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.arm_points import ArmPoints
from analysis.isoflop import fit_slices

MIN_SIZES_OF_SLICE = 3
"""Sizes that a parabola needs; a ladder has one size a budget and so no slice."""


def isoflop_laws(points: Mapping[str, ArmPoints]) -> list[dict[str, Any]]:
    """Of every arm with slices: {variant, law: `SizeLaw`, points: [{budget, params, loss, spec_ids}]}."""
    rows = []
    for variant, own in points.items():
        sizes = {float(b): len(set(own.params[own.budget == b])) for b in np.unique(own.budget)}
        keep = np.array([sizes[float(b)] >= MIN_SIZES_OF_SLICE for b in own.budget], dtype=bool)
        if not keep.any():
            continue
        chosen = own.where(keep)
        law = fit_slices(chosen.budget, chosen.params, chosen.loss)
        listed = zip(chosen.budget, chosen.params, chosen.loss, chosen.spec_ids, strict=True)
        rows.append(
            {
                "variant": variant,
                "law": law.model_dump(mode="json"),
                "points": [
                    {"budget": float(b), "params": float(n), "loss": float(y), "spec_ids": list(ids)}
                    for b, n, y, ids in listed
                ],
            }
        )
    return rows
