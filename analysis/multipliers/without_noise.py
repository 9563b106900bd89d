"""Arms whose losses are equal in every pair: one arm twice, a control that only costs, or a mistake."""

import math

import numpy as np

from analysis.multipliers.base import Estimate, PairedArms, RefusalError, RefusalReason


def estimate_without_noise(arms: PairedArms, level: float) -> Estimate | None:
    """The estimate of arms whose losses are equal in every pair; None where a loss differs.

    One arm twice gives 1. A control gives ln m = -ln(C_v / C_b), the mean over sizes, and their range in
    place of an interval.

    Raises:
        RefusalError: equal losses of an arm that is no control: it computes what the baseline computes.
    """
    if not arms.same_losses:
        return None
    if arms.identical:
        return Estimate(0.0, 0.0, 0.0, 0.0, None, level, "none", "none", status="identical")
    if not arms.control:
        raise RefusalError(
            RefusalReason.NO_VARIANCE,
            f"every loss of {arms.variant} equals {arms.baseline}'s to the last digit: it computes the same "
            "(a control that should has the role overhead_only)",
        )
    rungs = np.log(arms.compute_baseline) - np.log(arms.compute_variant)
    lo, hi = float(rungs.min()), float(rungs.max())
    ln_m = min(max(float(np.average(rungs, weights=arms.num_seeds)), lo), hi)
    sd = math.sqrt(float(np.average((rungs - ln_m) ** 2, weights=arms.num_seeds)))
    return Estimate(ln_m, lo, hi, sd, None, level, "none", "none", status="exact")
