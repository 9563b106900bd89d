"""From a minimum to a result: is it one, is it determined, on a bound; and with which standard errors."""

from dataclasses import dataclass

import numpy as np

from analysis.fit_input import Data
from analysis.fit_result import FitResult, FitStatus
from analysis.forms.base import Array, Form, Units
from analysis.newton import Minima
from analysis.objective import Problem, evaluate, influence
from analysis.residuals import Residual
from analysis.robust_covariance import robust_sd, sandwich

SAME_OBJECTIVE = 1e-6
# Above, a parameter combination is determined by the rounding of the losses rather than by the losses.
WORST_CONDITION = 1e8
SMALLEST_DERIVATIVE = 1e-7
# Residuals of ln loss below this are rounding: a noise-free fit.
ROUNDING = 1e-11


@dataclass(frozen=True)
class Draft:
    """Everything about a result that is known before the search."""

    form: Form
    data: Data
    group: str
    fixed: dict[str, float]
    huber_delta: float | None
    residual: Residual
    starts_ranked: int = 0

    def without_answer(self, status: FitStatus, message: str) -> FitResult:
        """A result without parameters."""
        return self._result({}, {}, None, None, status, message, {})

    def judge(self, problem: Problem, units: Units, minima: Minima) -> FitResult:
        """Turn the best minimum into a result with a status; ``minima`` in order of their objective."""
        form = self.form
        minima = minima.take(np.argsort(~self._at_best(minima) | ~minima.converged, kind="stable"))
        theta = minima.theta[0]
        with np.errstate(over="ignore"):
            public = form.to_public(theta[None], units)[0]
        parameters = dict(zip(form.parameters, public.tolist(), strict=True))
        parameters.update(self.fixed)
        objective = float(minima.objective[0])
        if not np.isfinite(public).all() or not np.isfinite(objective):
            return self.without_answer(
                FitStatus.FAILED, "no finite minimum: the parameters overflow in these units"
            )
        diagnostics = self._diagnostics(problem, minima)
        if not minima.converged[0]:
            message = f"no start converged: largest gradient cosine {diagnostics['gradient']:.1e}"
            return self._result(parameters, {}, None, objective, FitStatus.FAILED, message, diagnostics)
        lower, upper = form.bounds()
        at_bound = problem.free & ((theta <= lower) | (theta >= upper))
        varying = problem.free & ~at_bound
        jacobian = self._weighted_jacobian(problem, theta)
        reason = form.defect(parameters, self.data.inputs) or self._no_law(parameters, at_bound)
        if reason := reason or self._undetermined(problem, jacobian, varying, diagnostics):
            return self._result(
                parameters, {}, None, objective, FitStatus.NOT_IDENTIFIABLE, reason, diagnostics
            )
        covariance = self._covariance(problem, theta, jacobian, varying, units, diagnostics)
        errors: dict[str, float | None] = {
            name: float(np.sqrt(max(covariance[i, i], 0.0))) if varying[i] else None
            for i, name in enumerate(form.parameters)
        }
        status, message = FitStatus.CONVERGED, form.concern(parameters, self.data.inputs, self.data.loss)
        if at_bound.any():
            names = [
                f"{n} = {parameters[n]:.4g}" for n, b in zip(form.parameters, at_bound, strict=True) if b
            ]
            status = FitStatus.BOUND_HIT
            message = f"on its bound: {', '.join(names)}; the other standard errors are conditional on it"
        return self._result(parameters, errors, covariance, objective, status, message, diagnostics)

    def _no_law(self, parameters: dict[str, float], at_bound: np.ndarray) -> str:
        """An exponent on its bound: the points are flat, rise, or end on a plateau."""
        names = [
            n for n, b in zip(self.form.parameters, at_bound, strict=True) if b and n in self.form.exponents
        ]
        values = ", ".join(f"{name} = {parameters[name]:.4g}" for name in names)
        return f"no law of this form: exponent on its bound, {values}" if names else ""

    def _at_best(self, minima: Minima) -> np.ndarray:
        """Which starts ended at the lowest objective of all."""
        best = minima.objective.min()
        rounding = 0.5 * ROUNDING**2 * (self.data.weights / self.data.sigma**2).sum()
        at_best: np.ndarray = minima.objective <= best * (1 + SAME_OBJECTIVE) + rounding
        return at_best

    def _weighted_jacobian(self, problem: Problem, theta_P: Array) -> Array:
        log_curve, jacobian = problem.form.log_curve(theta_P[None], problem.z)
        steepness = problem.residual.slope(log_curve[0]) * problem.precision
        weighted: Array = jacobian[0] * np.sqrt(self.data.weights) * steepness
        return weighted

    def _diagnostics(self, problem: Problem, minima: Minima) -> dict[str, float]:
        theta = minima.theta[0]
        with np.errstate(all="ignore"):
            log_curve, _ = problem.form.log_curve(theta[None], problem.z)
            local = evaluate(problem, theta[None], self.data.weights[None])
        standardised = problem.residual.of(problem.log_loss, log_curve[0]) * problem.precision
        residual = standardised * self.data.sigma
        _, psi, _ = influence(standardised, problem.delta)
        pull = np.sqrt(self.data.weights @ psi**2)
        jacobian = self._weighted_jacobian(problem, theta)
        lower, upper = problem.form.bounds()
        inside = problem.free & (theta > lower) & (theta < upper)
        floor = ROUNDING * np.sqrt((self.data.weights / self.data.sigma**2).sum())
        length = np.linalg.norm(jacobian, axis=1) * (pull + floor)
        cosine = np.abs(local.gradient[0]) / np.where(length > 0, length, 1.0)
        at_best = self._at_best(minima)
        dof = max(int((self.data.weights > 0).sum()) - int(problem.free.sum()), 1)
        share = self.data.weights / self.data.weights.mean()
        return {
            "gradient": float(cosine[inside].max(initial=0.0)),
            "starts_ranked": float(self.starts_ranked),
            "starts": float(len(at_best)),
            "starts_at_best": float(at_best.mean()),
            "iterations": float(minima.iterations[0]),
            "residual_sd": float(np.sqrt((share * residual**2).sum() / dof)),
            "dof": float(dof),
        }

    def _undetermined(
        self, problem: Problem, jacobian_PN: Array, varying: np.ndarray, diagnostics: dict[str, float]
    ) -> str:
        names = np.array(self.form.parameters)
        length = np.linalg.norm(jacobian_PN, axis=1) / np.sqrt(self.data.weights @ problem.precision**2)
        flat = varying & (length < SMALLEST_DERIVATIVE)
        if flat.any():
            return f"the fitted curve does not depend on {', '.join(names[flat])}"
        if not varying.any():
            return ""
        columns = jacobian_PN[varying] / np.linalg.norm(jacobian_PN[varying], axis=1, keepdims=True)
        singular = np.linalg.svd(columns, compute_uv=False)
        condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")
        diagnostics["condition"] = min(condition, 1e300)
        if len(singular) < varying.sum() or condition > WORST_CONDITION:
            return f"{', '.join(names[varying])} cannot be told apart (condition number {condition:.1e})"
        return ""

    def _covariance(
        self,
        problem: Problem,
        theta_P: Array,
        jacobian_PN: Array,
        varying: np.ndarray,
        units: Units,
        diagnostics: dict[str, float],
    ) -> Array:
        """Covariance of the public parameters: classical for least squares, a smoothed sandwich for Huber.

        A known sigma is not trusted below the scatter: the variance is multiplied by max(1, chi^2 / dof).
        """
        log_curve, _ = problem.form.log_curve(theta_P[None], problem.z)
        residual = problem.residual.of(problem.log_loss, log_curve[0]) * problem.precision
        norms = np.linalg.norm(jacobian_PN[varying], axis=1)
        columns, weights = jacobian_PN[varying] / norms[:, None], self.data.weights
        num_points = int((weights > 0).sum())
        spare = max(num_points - len(norms), 1)
        if problem.delta is None:
            scatter = float(weights @ residual**2) / spare
            shape = scatter * np.linalg.inv(columns @ columns.T)
        else:
            scatter = robust_sd(residual[weights > 0]) ** 2
            shape = sandwich(columns, residual, weights, problem.delta) * (num_points / spare)
        if self.data.sigma_known:
            diagnostics["chi2_per_dof"] = scatter
            shape = shape * max(1.0, 1.0 / scatter) if scatter > 0 else np.linalg.inv(columns @ columns.T)
        internal = np.zeros((len(theta_P), len(theta_P)))
        internal[np.ix_(varying, varying)] = shape / np.outer(norms, norms)
        outward = problem.form.public_jacobian(theta_P, units)
        covariance: Array = outward @ internal @ outward.T
        return covariance

    def _result(
        self,
        parameters: dict[str, float],
        errors: dict[str, float | None],
        covariance: Array | None,
        objective: float | None,
        status: FitStatus,
        message: str,
        diagnostics: dict[str, float],
    ) -> FitResult:
        ranges = {**self.data.inputs, "loss": self.data.loss}
        return FitResult(
            form=self.form.name,
            group=self.group,
            parameter_names=self.form.parameters,
            parameters=parameters,
            standard_errors=errors,
            covariance=None if covariance is None else covariance.tolist(),
            fixed=self.fixed,
            huber_delta=self.huber_delta,
            residual=self.residual.name,
            objective=objective,
            n_points=len(self.data.loss),
            spec_ids=list(self.data.spec_ids),
            range={name: [float(v.min()), float(v.max())] for name, v in ranges.items()},
            status=status,
            message=message,
            diagnostics=diagnostics,
        )
