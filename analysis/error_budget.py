"""Where the uncertainty of ln m comes from, source by source, in one unit (sd of ln m)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.clusters import linked
from analysis.multipliers.base import LEVEL, PairedArms, RefusalError
from analysis.multipliers.pair_arrays import estimate_pair_slope
from analysis.multipliers.pair_slope import inputs_of, pair_slope


def error_budget(
    arms: PairedArms,
    sensitivity: Sequence[Mapping[str, Any]],
    ln_m_by_axis: Mapping[str, float],
    rates: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Rows {variant, source, sd_ln_m, in_interval, how}; sd None where the study cannot tell.

    ``in_interval`` says whether the headline's interval holds the source already; the others are shifts
    that no further seed removes.
    """
    try:
        headline = pair_slope(arms, LEVEL)
    except RefusalError:
        return []
    if headline.without_noise:
        return []
    fixed = [
        row["compute_multiplier"]
        for row in sensitivity
        if row["kind"] == "irreducible" and row["compute_multiplier"] is not None
    ]
    rounded = [
        row["compute_multiplier"]
        for row in sensitivity
        if row["kind"] == "rounding" and row["value"] == "3 decimals" and row["compute_multiplier"]
    ]
    move = abs(math.log(rounded[0]) - headline.ln_m) if rounded else None
    axes = [math.exp(value) for value in ln_m_by_axis.values()]
    sources: list[tuple[str, float | None, bool, str]] = [
        ("pairs", headline.facts["pair_sd"], True, "spread over sizes: seeds, and what differs by size"),
        ("seeds", _seed_sd(arms), True, "part of pairs: seed differences within sizes, over the slope"),
        ("slope", headline.facts["slope_sd"], True, "error of the averaged curve: common lack of fit"),
        ("irreducible loss", _half_range(fixed), False, "half the range of m over the rules for E"),
        ("FLOP convention", _half_range(axes), False, f"half the range over {', '.join(ln_m_by_axis)}"),
        ("rounding", move, False, "move when losses are rounded to 3 decimals"),
        (
            "learning rate",
            _rate_shift(arms, rates),
            False,
            "what own best rates would change, over the slope",
        ),
    ]
    return [
        {"variant": arms.variant, "source": source, "sd_ln_m": sd, "in_interval": inside, "how": how}
        for source, sd, inside, how in sources
    ]


def _half_range(multipliers: Sequence[float]) -> float | None:
    if len(multipliers) < 2:
        return None
    return (math.log(max(multipliers)) - math.log(min(multipliers))) / 2


def _slopes(arms: PairedArms) -> np.ndarray:
    """-dL/dlnC of the averaged curve at every rung, nats."""
    result = estimate_pair_slope(*inputs_of(arms))
    slopes: np.ndarray = result.exponent[0] * result.excess[0]
    return slopes


def _seed_sd(arms: PairedArms) -> float | None:
    """Standard error of ln m from seeds alone; None without a size of two seeds."""
    difference = arms.pair_loss_baseline - arms.pair_loss_variant
    squares, dof = 0.0, 0
    for k in range(len(arms.sizes)):
        inside = difference[arms.pair_rung == k]
        squares, dof = squares + float(((inside - inside.mean()) ** 2).sum()), dof + len(inside) - 1
    if dof == 0:
        return None
    weight = arms.num_seeds / arms.num_seeds.sum()
    per_pair = (weight / _slopes(arms) / arms.num_seeds)[arms.pair_rung]
    # Pairs of one trunk as if wholly correlated: what the branches do not share would make it less.
    unit = linked(arms.pair_trunks) if arms.clustered else np.arange(arms.num_pairs)
    per_unit = np.bincount(unit, weights=per_pair)
    return math.sqrt(squares / dof * float((per_unit**2).sum()))


def _rate_shift(arms: PairedArms, rates: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean over swept sizes of (gain of the variant - gain of the baseline at their best rates) / slope."""
    best = {(rate["variant"], rate["size"]): rate for rate in rates}
    slopes = dict(zip(arms.sizes, _slopes(arms), strict=True))
    shifts = []
    for size, base, other in zip(arms.sizes, arms.loss_baseline, arms.loss_variant, strict=True):
        left, right = best.get((arms.baseline, size)), best.get((arms.variant, size))
        if left is None or right is None:
            continue
        gain = (float(other) - min(right["losses"])) - (float(base) - min(left["losses"]))
        shifts.append(abs(gain) / float(slopes[size]))
    return sum(shifts) / len(shifts) if shifts else None
