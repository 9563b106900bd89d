"""Headline: differences of pairs, turned into compute by the slope of the arm-averaged curve.

    ln m = mean_i { [ln(L_b - E) - ln(L_v - E)]_i / a - ln(C_v/C_b)_i }

i runs over the rungs (seeds averaged first), weighted by their seeds. E is profiled on the arm-averaged
curve; where its best value is not above 0 (or the curve bends more than any law) it is held at 0.

E held: a from the regression of the arms' mean ln(L - E) on ln C.
E profiled: a, E and the excess e_i = A C_i^-a from the curve E + A C^-a fitted to the arms' mean loss, and
L_b - E, L_v - E are e_i +- half the difference D_i, freed of the lack of fit that both arms share.

Variance = s_d^2 / K (spread of the rungs' values) + slope term (error of the curve through the formula);
degrees of freedom by Satterthwaite. The error of a profiled E tilts the rungs' values and would be
counted twice: the tilt is taken out of s_d, at the price of one degree of freedom.
docs/decisions/2026-11-29-irreducible-loss-in-the-headline.md has the coverage of the alternatives.

Rungs that share a trunk are one cluster: s_d is the spread of the clusters' means, K their number, and the
slope term's covariance allows for any correlation within them (docs/decisions/2026-11-30-trunks.md).
"""

import math

import numpy as np

from analysis.multipliers.averaged_curve import MIN_EXPONENT
from analysis.multipliers.base import (
    MULTIPLIERS,
    Estimate,
    Floats,
    PairedArms,
    RefusalError,
    RefusalReason,
    check_arms,
    student_interval,
)
from analysis.multipliers.pair_arrays import estimate_pair_slope
from analysis.multipliers.without_noise import estimate_without_noise


@MULTIPLIERS.register("pair_slope")
def pair_slope(arms: PairedArms, level: float) -> Estimate:
    """The headline estimate of one study, E profiled on the arm-averaged curve.

    Raises:
        RefusalError: see `check_arms`; or the curve does not fall, so that there is no slope.
    """
    return pair_slope_at(arms, level, None)


def pair_slope_at(arms: PairedArms, level: float, irreducible: float | None) -> Estimate:
    """`pair_slope` with E held at ``irreducible`` nats (None: profiled)."""
    check_arms(arms)
    result = estimate_pair_slope(*inputs_of(arms), irreducible, arms.clusters)
    ln_m, variance = float(result.ln_m[0]), float(result.variance[0])
    exponent, base = float(result.exponent[0]), float(result.irreducible[0])
    if exponent < MIN_EXPONENT:
        raise RefusalError(
            RefusalReason.NOT_IDENTIFIABLE,
            f"the mean loss of the arms does not fall with compute (exponent {exponent:.3g})",
        )
    if not math.isfinite(ln_m) or not math.isfinite(variance):
        lowest = min(arms.loss_baseline.min(), arms.loss_variant.min())
        raise RefusalError(
            RefusalReason.NOT_IDENTIFIABLE,
            f"irreducible loss {base:.4g} leaves no excess in every size (smallest loss {lowest:.4g})",
        )
    known = estimate_without_noise(arms, level)
    if known is not None:
        return known
    if float(result.pair_variance[0]) < MIN_PAIR_VARIANCE:
        raise RefusalError(
            RefusalReason.NO_VARIANCE,
            f"all {arms.num_sizes} sizes give {math.exp(ln_m):.4g} to the last digit; trained runs do not",
        )
    dof = float(result.dof[0])
    lo, hi = student_interval(ln_m, math.sqrt(variance), dof, level)
    return Estimate(
        ln_m=ln_m,
        lo=lo,
        hi=hi,
        sd=math.sqrt(variance),
        dof=dof,
        level=level,
        form="saturating" if base else "power_law",
        irreducible=_rule(irreducible, base, bool(result.profiled[0])),
        facts={
            "exponent": exponent,
            "irreducible": base,
            "pair_sd": math.sqrt(float(result.pair_variance[0])),
            "slope_sd": math.sqrt(float(result.slope_variance[0])),
            "residual_sd": float(result.residual_sd[0]),
        },
    )


MIN_PAIR_VARIANCE = 1e-20
"""Squared standard error of ln m below which the differences are made up: rounding alone gives 1e-24."""


def inputs_of(arms: PairedArms) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """One study as the arrays of `estimate_pair_slope`."""
    return (
        np.log(arms.compute_baseline)[None],
        np.log(arms.compute_variant)[None],
        arms.loss_baseline[None],
        arms.loss_variant[None],
        arms.num_seeds[None],
    )


def _rule(irreducible: float | None, base: float, free: bool) -> str:
    if irreducible is not None:
        return f"fixed: {irreducible:.4g}"
    return f"profiled: {base:.4g}" if free else "profiled: 0 (bound)"
