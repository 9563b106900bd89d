"""The cluster jackknife: intervals of estimators that take rungs for independent, where rungs share trunks.

    var(ln m) = (G - 1) / G sum_g (theta_g - theta)^2,   theta_g the estimate without cluster g;   dof G - 1

Whatever the correlation within clusters is, at the price of a wide interval at few of them. Where an estimate
is read at the largest compute, leaving out the cluster that holds it moves the place too: wider still.
"""

import dataclasses
import functools
import math

import numpy as np

from analysis.multipliers.base import (
    Estimate,
    Estimator,
    PairedArms,
    RefusalError,
    RefusalReason,
    student_interval,
)


def by_cluster(estimator: Estimator) -> Estimator:
    """``estimator``, with the jackknife's interval where rungs share trunks."""

    @functools.wraps(estimator)
    def estimate(arms: PairedArms, level: float) -> Estimate:
        return _jackknife(arms, level, estimator) if arms.clustered else estimator(arms, level)

    return estimate


def _jackknife(arms: PairedArms, level: float, estimator: Estimator) -> Estimate:
    """Raises RefusalError: the estimator has no answer to all pairs, or to those without one cluster."""
    apart = dataclasses.replace(arms, pair_trunks=())
    whole = estimator(apart, level)
    if whole.without_noise:
        return whole
    num = arms.num_clusters
    without = []
    for cluster in range(num):
        rest = rungs_where(apart, arms.clusters != cluster)
        try:
            without.append(estimator(rest, level).ln_m)
        except RefusalError as refusal:
            raise RefusalError(
                RefusalReason.NOT_IDENTIFIABLE,
                f"runs share trunks, and without one of the {num} clusters there is no estimate ({refusal})",
            ) from refusal
    sd = math.sqrt((num - 1) / num * float(((np.array(without) - whole.ln_m) ** 2).sum()))
    lo, hi = student_interval(whole.ln_m, sd, num - 1, level)
    return dataclasses.replace(whole, lo=lo, hi=hi, sd=sd, dof=float(num - 1))


def rungs_where(arms: PairedArms, keep: np.ndarray) -> PairedArms:
    """The rungs at which ``keep`` is true, and their pairs."""
    chosen = np.flatnonzero(keep)
    renumber = {int(old): new for new, old in enumerate(chosen)}
    pairs = np.isin(arms.pair_rung, chosen)
    return dataclasses.replace(
        arms,
        sizes=tuple(arms.sizes[i] for i in chosen),
        **{
            name: getattr(arms, name)[chosen]
            for name in (
                *("budget", "params_baseline", "params_variant", "tokens", "compute_baseline"),
                *("compute_variant", "loss_baseline", "loss_variant", "num_seeds"),
            )
        },
        pair_rung=np.array([renumber[int(k)] for k in arms.pair_rung[pairs]], dtype=np.int64),
        pair_spec_ids=tuple(ids for ids, kept in zip(arms.pair_spec_ids, pairs, strict=True) if kept),
        pair_trunks=tuple(names for names, kept in zip(arms.pair_trunks, pairs, strict=False) if kept),
        pair_seed=arms.pair_seed[pairs],
        pair_loss_baseline=arms.pair_loss_baseline[pairs],
        pair_loss_variant=arms.pair_loss_variant[pairs],
    )
