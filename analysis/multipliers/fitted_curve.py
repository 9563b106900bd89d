"""The published way: one law fitted to each arm, m read off the two curves at the largest compute.

    L_baseline(C') = L_variant(C),  m = C' / C

Saturating laws where both arms determine an E above 0, else power laws. Interval: `paired_variance`. Noise
that looks like an E above 0 has no counterpart below it: with E = 0, 6x and a lack of fit of .005 nats the
median is 1.255 to 1.264 for 1.25 (1.28 in the two fifths of studies that get an E, 1.25 in the others).
"""

import math

from analysis.fit_result import FitResult, FitStatus
from analysis.forms.base import Form, form_named
from analysis.multipliers.base import (
    MULTIPLIERS,
    Estimate,
    PairedArms,
    RefusalError,
    RefusalReason,
    check_arms,
    student_interval,
)
from analysis.multipliers.clustered import by_cluster
from analysis.multipliers.paired_laws import FittedArm, paired_variance
from analysis.multipliers.without_noise import estimate_without_noise
from analysis.solve import fit


@MULTIPLIERS.register("fitted_curve")
@by_cluster
def fitted_curve(arms: PairedArms, level: float) -> Estimate:
    """m at the largest compute of the variant, from one law an arm.

    Raises:
        RefusalError: see `check_arms`; a law that is not identifiable; a loss below the baseline's E.
    """
    check_arms(arms)
    known = estimate_without_noise(arms, level)
    if known is not None:
        return known
    form, base, other = _laws(arms)
    at = float(arms.compute_variant.max())
    ln_m = _ln_m(form, base.parameters, other.parameters, at)
    if not math.isfinite(ln_m):
        raise RefusalError(
            RefusalReason.NOT_IDENTIFIABLE,
            f"the baseline's law never reaches {arms.variant}'s loss at {at:.4g}",
        )
    variance, dof = paired_variance(
        form,
        FittedArm(base.parameters, {"compute": arms.compute_baseline}, arms.loss_baseline),
        FittedArm(other.parameters, {"compute": arms.compute_variant}, arms.loss_variant),
        arms.num_seeds,
        lambda left, right: _ln_m(form, left, right, at),
    )
    if variance <= 0:
        raise RefusalError(RefusalReason.NO_VARIANCE, "both laws fit to the last digit")
    lo, hi = student_interval(ln_m, math.sqrt(variance), dof, level)
    return Estimate(
        ln_m=ln_m,
        lo=lo,
        hi=hi,
        sd=math.sqrt(variance),
        dof=dof,
        level=level,
        form=form.name,
        irreducible=_rule(base, other),
        at=at,
        extrapolated=math.exp(ln_m) * at > float(arms.compute_baseline.max()),
    )


def _laws(arms: PairedArms) -> tuple[Form, FitResult, FitResult]:
    for name in ("saturating", "power_law"):
        form = form_named(name)
        if len(arms.sizes) <= len(form.parameters):
            continue
        base, other = (
            fit(form, {"compute": compute}, loss, weights=arms.num_seeds, group=group)
            for compute, loss, group in (
                (arms.compute_baseline, arms.loss_baseline, arms.baseline),
                (arms.compute_variant, arms.loss_variant, arms.variant),
            )
        )
        if base.status is FitStatus.CONVERGED and other.status is FitStatus.CONVERGED:
            return form, base, other
    bad = base if not base.usable else other
    raise RefusalError(
        RefusalReason.NOT_IDENTIFIABLE, f"law of {bad.group}: {bad.status.value}: {bad.message}"
    )


def _ln_m(form: Form, base: dict[str, float], other: dict[str, float], at: float) -> float:
    """ln (C'/C); NaN where the baseline never gets there."""
    excess = float(form.predict(other, {"compute": at})) - base.get("E", 0.0)
    if excess <= 0 or base["alpha"] <= 0:
        return math.nan
    return (math.log(base["A"]) - math.log(excess)) / base["alpha"] - math.log(at)


def _rule(base: FitResult, other: FitResult) -> str:
    if "E" not in base.parameters:
        return "fixed: 0"
    return f"free: {base.parameters['E']:.4g} and {other.parameters['E']:.4g}"
