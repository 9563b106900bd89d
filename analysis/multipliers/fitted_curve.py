"""The published way: one law fitted to each arm, m read off the two curves at the largest compute.

    L_baseline(C') = L_variant(C),  m = C' / C

Saturating laws where both arms determine an E above 0, else power laws. Interval: the arms' residuals at
one rung are correlated (they share its lack of fit), so the error of ln m is a weighted sum of pairs of
residuals, their 2 x 2 covariance estimated with K - p degrees of freedom.
"""

import math

import numpy as np

from analysis.fit_result import FitResult, FitStatus
from analysis.forms.base import Form, form_named
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
from analysis.solve import fit


@MULTIPLIERS.register("fitted_curve")
def fitted_curve(arms: PairedArms, level: float) -> Estimate:
    """m at the largest compute of the variant, from one law an arm.

    Raises:
        RefusalError: see `check_arms`; a law that is not identifiable; a loss below the baseline's E.
    """
    check_arms(arms)
    if arms.identical:
        return Estimate(0.0, 0.0, 0.0, 0.0, None, level, "none", "none", status="identical")
    form, base, other = _laws(arms)
    at = float(arms.compute_variant.max())
    ln_m = _ln_m(form, base.parameters, other.parameters, at)
    if not math.isfinite(ln_m):
        raise RefusalError(
            RefusalReason.NOT_IDENTIFIABLE,
            f"the baseline's law never reaches {arms.variant}'s loss at {at:.4g}",
        )
    variance, dof = _variance(form, base, other, arms, at)
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


def _variance(
    form: Form, base: FitResult, other: FitResult, arms: PairedArms, at: float
) -> tuple[float, float]:
    """Variance of ln m and its degrees of freedom, from the paired residuals in ln loss."""
    influences, residuals = [], []
    for result, compute, loss, which in (
        (base, arms.compute_baseline, arms.loss_baseline, 0),
        (other, arms.compute_variant, arms.loss_variant, 1),
    ):
        jacobian_NP = _log_jacobian(form, result.parameters, compute)
        weighted = jacobian_NP * arms.num_seeds[:, None]
        response_PN = np.linalg.solve(weighted.T @ jacobian_NP, weighted.T)
        influences.append(_gradient(form, base, other, at, which) @ response_PN)
        residuals.append(np.log(loss) - np.log(form.predict(result.parameters, {"compute": compute})))
    dof = len(arms.sizes) - len(form.parameters)
    stacked = np.stack(residuals) * np.sqrt(arms.num_seeds)
    scatter_22 = stacked @ stacked.T / dof
    p, q = influences
    share = 1 / arms.num_seeds
    variance = (
        scatter_22[0, 0] * (p * p * share).sum()
        + 2 * scatter_22[0, 1] * (p * q * share).sum()
        + scatter_22[1, 1] * (q * q * share).sum()
    )
    return float(variance), float(dof)


def _log_jacobian(form: Form, parameters: dict[str, float], compute: Floats) -> Floats:
    """d ln L / d parameter, N x P, by central differences."""
    columns = []
    for name in form.parameters:
        step = 1e-6 * max(abs(parameters[name]), 1e-9)
        up, down = (
            np.log(form.predict({**parameters, name: parameters[name] + sign * step}, {"compute": compute}))
            for sign in (1, -1)
        )
        columns.append((up - down) / (2 * step))
    return np.stack(columns, axis=-1)


def _gradient(form: Form, base: FitResult, other: FitResult, at: float, which: int) -> Floats:
    """d ln m / d parameter of the baseline's (0) or the variant's (1) law."""
    values = []
    for name in form.parameters:
        sides = []
        for sign in (1, -1):
            pair = [dict(base.parameters), dict(other.parameters)]
            step = 1e-6 * max(abs(pair[which][name]), 1e-9)
            pair[which][name] += sign * step
            sides.append(_ln_m(form, pair[0], pair[1], at))
        values.append((sides[0] - sides[1]) / (2 * step))
    return np.array(values)


def _rule(base: FitResult, other: FitResult) -> str:
    if "E" not in base.parameters:
        return "fixed: 0"
    return f"free: {base.parameters['E']:.4g} and {other.parameters['E']:.4g}"
