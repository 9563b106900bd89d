"""Finished runs of two arms -> pairs that differ in the stream and in nothing else."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.compute_axes import compute_on
from analysis.multipliers.base import PairedArms, RefusalError, RefusalReason

MUST_AGREE = (
    *("dataset", "data_seed", "seed", "numerics", "depth", "width", "num_heads", "mlp_width", "vocab_size"),
    *("seq_len", "tied", "budget", "tokens", "batch_tokens", "steps", "lr", "warmup", "schedule"),
    *("weight_decay", "recipe", "val_tokens", "device", "precision"),
)
"""Columns in which the arms of a pair must be equal; any other difference is refused, or allowed by name."""

SHOULD_AGREE = ("compile", "kernels", "processes", "strategy", "threads", "torch_version", "git_sha")
"""Columns whose differences are noted: they may move a loss in the last digits."""

MIN_STEPS = 50
"""Optimiser steps below which a run says nothing about a law (a gain was once claimed from 20)."""


@dataclass(frozen=True)
class Pairs:
    """Finished runs of two arms, row by row of one pair; sorted by budget, size and seed."""

    left: pd.DataFrame
    """The baseline's."""
    right: pd.DataFrame
    """The variant's."""
    baseline: str
    variant: str
    notes: tuple[str, ...]

    def on(self, axis: str) -> PairedArms:
        """Losses and compute on ``axis``, seeds averaged rung by rung."""
        return _assemble(self, axis)


def match_pairs(
    cells: pd.DataFrame,
    baseline: str,
    variant: str,
    *,
    role: Collection[str] = ("ladder",),
    allow: Collection[str] = (),
) -> Pairs:
    """The finished pairs of ``variant`` and ``baseline``.

    Args:
        cells: `Study.cells`.
        baseline: variant label.
        variant: variant label; may be the baseline itself.
        role: roles of the cells that count.
        allow: columns that may differ within pairs; such differences become notes.

    Raises:
        RefusalError: no finished pair, pairs that differ in more than the stream, or runs of a few steps.
    """
    chosen = cells[cells["role"].isin(list(role))]
    left = chosen[chosen["variant"] == baseline].set_index("pair_id")
    right = chosen[chosen["variant"] == variant].set_index("pair_id")
    notes = _coverage_notes(left, right, baseline, variant)
    left, right = left[~left["excluded"].astype(bool)], right[~right["excluded"].astype(bool)]
    common = sorted(set(left.index) & set(right.index))
    if not common:
        raise RefusalError(
            RefusalReason.NO_PAIRS,
            f"{len(right)} finished runs of {variant} and {len(left)} of {baseline} make none",
        )
    left, right = left.loc[common], right.loc[common]
    notes += _check_agreement(left, right, allow)
    _check_length(left)
    order = np.lexsort(
        (left["seed"].to_numpy(int), left["size"].to_numpy(str), left["budget"].to_numpy(float))
    )
    return Pairs(left.iloc[order], right.iloc[order], baseline, variant, tuple(notes))


def _coverage_notes(left: pd.DataFrame, right: pd.DataFrame, baseline: str, variant: str) -> list[str]:
    """Cells that are planned in both arms and finished in one: whoever dies is left out of both."""
    notes = []
    for name, (own, other) in {baseline: (left, right), variant: (right, left)}.items():
        lost = own[own["excluded"].astype(bool) & own.index.isin(other.index)]
        if len(lost):
            facts = zip(lost["size"], lost["seed"], lost["exclusion_reason"], strict=True)
            which = ", ".join(f"{size} seed {seed} ({reason})" for size, seed, reason in facts)
            notes.append(f"unequal coverage: {name} lacks {which}; those pairs are left out of both arms")
    return notes


def _check_agreement(left: pd.DataFrame, right: pd.DataFrame, allow: Collection[str]) -> list[str]:
    notes = []
    for key in (*MUST_AGREE, *SHOULD_AGREE):
        a, b = left[key].to_numpy(object), right[key].to_numpy(object)
        differs = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not _same(x, y)]
        if not differs:
            continue
        at = differs[0]
        text = (
            f"{key} differs in {len(differs)} of {len(left)} pairs: {b[at]} "
            f"({right['spec_id'].iloc[at]}) against {a[at]} ({left['spec_id'].iloc[at]})"
        )
        if key in MUST_AGREE and key not in allow:
            raise RefusalError(
                RefusalReason.UNEQUAL_PAIRS, f"{text}; --allow {key} compares them with a note"
            )
        notes.append(text)
    return notes


def _same(a: Any, b: Any) -> bool:
    if pd.isna(a) or pd.isna(b):
        return bool(pd.isna(a) and pd.isna(b))
    return bool(a == b)


def _check_length(left: pd.DataFrame) -> None:
    if left["steps"].isna().any():  # imported runs do not say
        return
    at = int(np.argmin(left["steps"].to_numpy(int)))
    shortest, size = int(left["steps"].iloc[at]), left["size"].iloc[at]
    if shortest < MIN_STEPS:
        raise RefusalError(
            RefusalReason.TOO_SHORT, f"{size} was planned for {shortest} steps, {MIN_STEPS} are needed"
        )


def _floats(values: pd.Series) -> pd.Series:
    """Whole numbers that may be missing, as floats and NaN."""
    return values.astype("Float64").astype("float64")


def _assemble(pairs: Pairs, axis: str) -> PairedArms:
    left, right = pairs.left, pairs.right
    compute_left, compute_right = compute_on(left, axis), compute_on(right, axis)
    if compute_left.isna().any() or compute_right.isna().any():
        raise RefusalError(RefusalReason.NO_COMPUTE, f"{axis} needs columns that are empty in some runs")
    keys = list(zip(left["budget"].to_numpy(float), left["size"], strict=True))
    rungs = list(dict.fromkeys(keys))
    rung = np.array([rungs.index(key) for key in keys])

    def mean(values: pd.Series) -> np.ndarray:
        array = values.to_numpy(float)
        return np.bincount(rung, weights=array) / np.bincount(rung)

    def first(values: pd.Series) -> np.ndarray:
        return np.array([values.to_numpy(float)[rung == k][0] for k in range(len(rungs))])

    return PairedArms(
        variant=pairs.variant,
        baseline=pairs.baseline,
        compute_axis=axis,
        sizes=tuple(size for _, size in rungs),
        budget=np.array([budget for budget, _ in rungs]),
        params_baseline=first(_floats(left["params_decoder"])),
        params_variant=first(_floats(right["params_decoder"] + right["params_stream"])),
        tokens=first(left["tokens"]),
        compute_baseline=first(compute_left),
        compute_variant=first(compute_right),
        loss_baseline=mean(left["val_loss"]),
        loss_variant=mean(right["val_loss"]),
        num_seeds=np.bincount(rung).astype(float),
        pair_rung=rung,
        pair_seed=left["seed"].to_numpy(int),
        pair_loss_baseline=left["val_loss"].to_numpy(float),
        pair_loss_variant=right["val_loss"].to_numpy(float),
        pair_spec_ids=tuple(zip(left["spec_id"], right["spec_id"], strict=True)),
        notes=pairs.notes,
        control=bool((right["role"] == "overhead_only").all()),
        pair_trunks=tuple(zip(left["trunk"], right["trunk"], strict=True)),
    )
