"""Laws of every arm -> fits/: one result a form and arm, residuals, the held-out budget, noise, counts."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from analysis.arm_points import ArmPoints, points_of
from analysis.checklist import checklist
from analysis.clusters import num_groups
from analysis.counts import count_runs
from analysis.fit_result import FitResult, FitStatus
from analysis.forms.base import FORMS, Form, form_named
from analysis.multipliers.base import LEVEL, MIN_SIZES
from analysis.noise import measure_noise
from analysis.rates import best_rates
from analysis.slices import isoflop_laws
from analysis.solve import fit
from analysis.study import Study, fit_name

VARIABLES = (("compute",), ("params", "tokens"))
"""What a form of a ladder depends on; isoFLOP slices are not ladders."""


def write_fits(study: Study) -> list[str]:
    """Fit every form to every arm and write fits/; returns lines for people.

    Raises:
        UserError: no runs.csv, or one that breaks its contract.
    """
    points = {arm: points_of(study.cells, arm) for arm in study.plan.arms}
    results: list[FitResult] = []
    residuals: list[dict[str, Any]] = []
    for arm, form in ((arm, form) for arm in study.plan.arms for form in usable_forms()):
        result = fit_arm(form, points[arm])
        results.append(result)
        residuals += list(_residuals(form, points[arm], result))
        study.write_fits(fit_name(form.name, arm), result.model_dump(mode="json"))
    study.write_fits("residuals", residuals)
    study.write_fits("holdout", [row for arm in study.plan.arms for row in holdout(points[arm])])
    study.write_fits("noise", measure_noise(study.cells, study.plan.baseline))
    study.write_fits("rates", [rate.as_dict() for rate in best_rates(study.cells)])
    study.write_fits("isoflop", isoflop_laws(points))
    study.write_fits("counts", count_runs(study))
    study.write_fits("checklist", checklist(study, points, results))
    return [f"{result.group:32s} {result.form:12s} {_line(result)}" for result in results]


def usable_forms() -> list[Form]:
    """Registered forms of compute, or of parameters and tokens."""
    forms = [form_named(name) for name in FORMS]
    return [form for form in forms if form.variables in VARIABLES]


def fit_arm(form: Form, points: ArmPoints, fixed: dict[str, float] | None = None) -> FitResult:
    """The law of one arm; too few sizes give a result that says so.

    Where points share trunks, the covariance is the jackknife's over clusters.
    """
    free = len(form.parameters) - len(fixed or {})
    needed = max(MIN_SIZES, free + 1)
    if points.num_sizes < needed:
        return _without_answer(
            form, points, f"{points.num_sizes} distinct sizes with finished runs, {needed} needed"
        )
    result = _fit(form, points, fixed)
    if result.usable and num_groups(points.clusters) < len(points):
        result = result.model_copy(update=_jackknife(form, points, result, fixed))
    return result.model_copy(update={"spec_ids": points.all_spec_ids})


def _fit(form: Form, points: ArmPoints, fixed: dict[str, float] | None) -> FitResult:
    return fit(
        form,
        {name: points.inputs[name] for name in form.variables},
        points.loss,
        weights=points.num_seeds,
        fixed=fixed,
        group=points.variant,
    )


def _jackknife(
    form: Form, points: ArmPoints, whole: FitResult, fixed: dict[str, float] | None
) -> dict[str, Any]:
    """Errors of a law whose points share trunks: (G - 1) / G sum_g (theta_g - theta)(theta_g - theta)'.

    None where the points without some cluster give no law: the fit's own would take the points for
    independent.
    """
    clusters = points.clusters
    num = num_groups(clusters)
    told = f"{len(points)} points of {num} clusters (shared trunks)"
    refits = [_fit(form, points.where(clusters != cluster), fixed) for cluster in range(num)]
    if not all(result.usable for result in refits):
        message = f"{told}: no standard errors, without one cluster there is no law"
        return {"covariance": None, "standard_errors": {}, "message": _joined(whole.message, message)}
    names = form.parameters
    moves = np.array([[r.parameters[n] - whole.parameters[n] for n in names] for r in refits])
    covariance = (num - 1) / num * moves.T @ moves
    free = len(names) - len(fixed or {})
    return {
        "covariance": covariance.tolist(),
        "standard_errors": dict(zip(names, np.sqrt(np.diag(covariance)).tolist(), strict=True)),
        "message": _joined(whole.message, f"{told}: standard errors by the jackknife over clusters"),
        "diagnostics": whole.diagnostics | {"dof": float(max(num - free, 1))},
    }


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _without_answer(form: Form, points: ArmPoints, message: str) -> FitResult:
    return FitResult(
        form=form.name,
        group=points.variant,
        parameter_names=form.parameters,
        parameters={},
        standard_errors={},
        covariance=None,
        objective=None,
        n_points=len(points),
        spec_ids=points.all_spec_ids,
        range={},
        status=FitStatus.NOT_IDENTIFIABLE,
        message=message,
        diagnostics={},
    )


def _residuals(form: Form, points: ArmPoints, result: FitResult) -> Iterator[dict[str, Any]]:
    if not result.usable:
        return
    predicted = form.predict(result.parameters, {name: points.inputs[name] for name in form.variables})
    for i, value in enumerate(predicted):
        yield {
            "variant": points.variant,
            "form": form.name,
            "spec_ids": list(points.spec_ids[i]),
            "size": points.sizes[i],
            "compute": float(points.compute[i]),
            "loss": float(points.loss[i]),
            "predicted": float(value),
            "residual": float(points.loss[i] - value),
        }


def holdout(points: ArmPoints) -> list[dict[str, Any]]:
    """The largest budget predicted from the others by each form of compute, with a prediction interval.

    Interval: t(dof) x sqrt(error of the curve^2 + residual sd^2 / seeds), in ln loss.
    """
    rows = []
    for form in usable_forms():
        if form.variables != ("compute",) or len(points) < 2:
            continue
        last = points.budget == points.budget.max()
        result = fit_arm(form, points.where(~last))
        target = points.where(last)
        for i in range(len(target)):
            rows.append(_predicted(form, result, target, i))
    return rows


def _predicted(form: Form, result: FitResult, target: ArmPoints, i: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "variant": target.variant,
        "form": form.name,
        "size": target.sizes[i],
        "budget": float(target.budget[i]),
        "compute": float(target.compute[i]),
        "measured": float(target.loss[i]),
        "predicted": None,
        "lo": None,
        "hi": None,
        "inside": None,
        "level": LEVEL,
        "spec_ids": list(target.spec_ids[i]),
        "fitted_on": result.spec_ids,
        "message": result.message,
    }
    if not result.usable:
        return row
    predicted = float(form.predict(result.parameters, {"compute": target.compute[i : i + 1]})[0])
    row["predicted"] = predicted
    if result.covariance is None:
        return row
    gradient = _log_gradient(form, result.parameters, float(target.compute[i]))
    curve_variance = float(gradient @ np.asarray(result.covariance) @ gradient)
    scatter = result.diagnostics["residual_sd"]
    sd = math.sqrt(max(curve_variance, 0.0) + scatter**2 / float(target.num_seeds[i]))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, result.diagnostics["dof"])) * sd
    row["lo"], row["hi"] = predicted * math.exp(-half), predicted * math.exp(half)
    row["inside"] = bool(row["lo"] <= row["measured"] <= row["hi"])
    return row


def _log_gradient(form: Form, parameters: dict[str, float], compute: float) -> np.ndarray:
    """d ln(loss) / d parameter at ``compute``, by central differences."""
    x = {"compute": np.array([compute])}
    gradient = []
    for name in form.parameters:
        step = 1e-6 * max(abs(parameters[name]), 1e-6)
        up, down = (
            math.log(float(form.predict({**parameters, name: parameters[name] + sign * step}, x)[0]))
            for sign in (1, -1)
        )
        gradient.append((up - down) / (2 * step))
    return np.array(gradient)


def _line(result: FitResult) -> str:
    if not result.usable:
        return f"{result.status.value}: {result.message}"
    parts = [
        f"{name} {value:.4g}" + (f" +- {error:.2g}" if (error := result.standard_errors.get(name)) else "")
        for name, value in result.parameters.items()
    ]
    return ", ".join(parts)
