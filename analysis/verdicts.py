"""Words that follow from an interval, and from nothing else."""

import math

from analysis.multipliers.base import Estimate

IDENTICAL = "identical"


def verdict_of(estimate: Estimate, num_sizes: int) -> str:
    """ "saves compute: resolved", "costs compute: resolved" or "not resolved at n = 5"."""
    if estimate.status == IDENTICAL:
        return "identical arms"
    if not (math.isfinite(estimate.lo) and math.isfinite(estimate.hi)):
        return f"not resolved at n = {num_sizes}: no interval"
    if estimate.lo > 0:
        return "saves compute: resolved"
    if estimate.hi < 0:
        return "costs compute: resolved"
    return f"not resolved at n = {num_sizes} sizes: no detectable gain"
