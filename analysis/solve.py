"""One solver for every form: variable-projection starts, damped Newton on ln loss, a typed result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from analysis.fit_result import FitInputError, FitResult, FitStatus
from analysis.forms.base import Array, Form, Units
from analysis.newton import Minima, Problem, evaluate, influence, minimise

# Exponents of published laws lie between 0.03 and 1.2; the grid is wider on both sides.
GRID_1D = np.geomspace(0.005, 3.0, 40)
GRID_2D = np.geomspace(0.02, 2.0, 16)
# The lowest starts are followed, and as many spread over the rest: the share ending at the best is told.
FOLLOWED_BEST, FOLLOWED_SPREAD = 6, 6
SAME_OBJECTIVE = 1e-6
# Above, a parameter combination is determined by the rounding of the losses rather than by the losses.
WORST_CONDITION = 1e8
SMALLEST_DERIVATIVE = 1e-7


@dataclass(frozen=True)
class Data:
    """Checked input: x (V, N), loss (N,), relative precision weights (N,), sigma (N,; ones if unknown)."""

    x: Array
    loss: Array
    weights: Array
    sigma: Array
    sigma_known: bool
    spec_ids: tuple[str, ...]


def fit(
    form: Form,
    x: Mapping[str, npt.ArrayLike],
    loss: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    sigma: npt.ArrayLike | None = None,
    huber_delta: float | None = None,
    fixed: Mapping[str, float] | None = None,
    group: str = "",
    spec_ids: Sequence[str] = (),
    exponent_starts: npt.ArrayLike | None = None,
) -> FitResult:
    """Minimise sum_n w_n rho((ln L_n - ln f(x_n)) / sigma_n) over the free parameters.

    Args:
        x: the form's variables, (N,) each, in any unit. loss: (N,), nats.
        weights: relative precision of the points (seeds averaged in each, say); their scale does not matter.
        sigma: standard deviation of ln loss per point. A larger sigma is a smaller say.
        huber_delta: residual (in sigma where given) beyond which rho is linear; None is least squares.
        fixed: parameters held at a value. group, spec_ids: carried into the result.
        exponent_starts: (S, number of exponents) replaces the grid of starts.

    Returns:
        A result; degenerate data give status not_identifiable, not an exception.

    Raises:
        FitInputError: an array is empty, not finite, not positive, of another length, or a name is unknown.
    """
    fixed = dict(fixed or {})
    data = checked(form, x, loss, weights=weights, sigma=sigma, spec_ids=spec_ids)
    check_options(form, huber_delta, fixed)
    draft = _Draft(form, data, group, fixed, huber_delta)
    if shortage := missing_information(form, data.x, data.weights, fixed):
        return draft.without_answer(FitStatus.NOT_IDENTIFIABLE, shortage)
    problem, units, fixed_P = pose(form, data, huber_delta, fixed)
    exponents = exponent_grid(form) if exponent_starts is None else checked_starts(form, exponent_starts)
    minima = search(problem, data, units, fixed_P, exponents)
    return draft.judge(problem, units, minima)


def checked(
    form: Form,
    x: Mapping[str, npt.ArrayLike],
    loss: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    sigma: npt.ArrayLike | None = None,
    spec_ids: Sequence[str] = (),
) -> Data:
    """The input as arrays, every value finite and positive.

    Raises:
        FitInputError: naming the array, the first bad point and its value.
    """
    loss_N = _array("loss", loss)
    ids = tuple(spec_ids)
    if len(loss_N) == 0:
        raise FitInputError(f"no points to fit '{form.name}' to: loss is empty")
    if ids and len(ids) != len(loss_N):
        raise FitInputError(f"spec_ids has {len(ids)} entries, loss has {len(loss_N)}: give one per point")
    missing = [name for name in form.variables if name not in x]
    if missing:
        raise FitInputError(
            f"form '{form.name}' needs {', '.join(form.variables)}: missing {', '.join(missing)}"
        )
    arrays = {"loss": loss_N, **{name: _array(name, x[name]) for name in form.variables}}
    if weights is not None:
        arrays["weights"] = _array("weights", weights)
    if sigma is not None:
        arrays["sigma"] = _array("sigma", sigma)
    for name, values in arrays.items():
        _check_values(name, values, len(loss_N), ids, zero_allowed=name == "weights")
    if weights is not None and not arrays["weights"].any():
        raise FitInputError("weights are all zero: at least one point must count")
    ones = np.ones(len(loss_N))
    return Data(
        np.stack([arrays[name] for name in form.variables]),
        loss_N,
        arrays.get("weights", ones),
        arrays.get("sigma", ones),
        sigma is not None,
        ids,
    )


def check_options(form: Form, huber_delta: float | None, fixed: Mapping[str, float]) -> None:
    """Refuse a delta that is not positive, an unknown or impossible fixed parameter (`FitInputError`)."""
    if huber_delta is not None and not (np.isfinite(huber_delta) and huber_delta > 0):
        raise FitInputError(
            f"huber_delta is {huber_delta}: give a positive number, or None for least squares"
        )
    unknown = [name for name in fixed if name not in form.parameters]
    if unknown:
        raise FitInputError(
            f"form '{form.name}' has no parameter {', '.join(unknown)}: it has {', '.join(form.parameters)}"
        )
    for name, value in fixed.items():
        if not np.isfinite(value):
            raise FitInputError(f"fixed {name} is {value}: give a finite number")
        if problem := form.impossible(name, value):
            raise FitInputError(f"fixed {name} is {value}: {problem}")


def missing_information(form: Form, x_VN: Array, weights_N: Array, fixed: Mapping[str, float]) -> str:
    """Why these inputs cannot determine the free parameters whatever the losses are; empty if they can."""
    used = x_VN[:, weights_N > 0]
    free = [name for name in form.parameters if name not in fixed]
    points, distinct = used.shape[1], np.unique(used, axis=1).shape[1]
    if points < len(free) + 1:
        return f"{points} points for {len(free)} free parameters ({', '.join(free)}): {len(free) + 1} needed"
    for name, values in zip(form.variables, used, strict=True):
        if form.needs_spread(name, free) and len(np.unique(values)) == 1:
            return f"all points are at one {name} ({values[0]:.4g}): nothing says how the loss depends on it"
    if distinct < len(free):
        return f"{distinct} distinct inputs for {len(free)} free parameters ({', '.join(free)})"
    if len(form.variables) > 1 and len(free) > 1:
        lnx = np.log(used) - np.log(used).mean(axis=1, keepdims=True)
        spread = np.linalg.svd(lnx / np.linalg.norm(lnx, axis=1, keepdims=True), compute_uv=False)
        if spread[-1] < 1e-6:
            return f"{' and '.join(form.variables)} vary together in every point: their terms look the same"
    return ""


def pose(
    form: Form, data: Data, huber_delta: float | None, fixed: Mapping[str, float]
) -> tuple[Problem, Units, Array]:
    """The problem in internal units, the units, and the fixed coordinates (P,), NaN where free."""
    lnx_VN, ln_loss_N = np.log(data.x), np.log(data.loss)
    units = Units(form.centre(lnx_VN, fixed), float(ln_loss_N.mean()))
    public_P = np.array([fixed.get(name, np.nan) for name in form.parameters])
    with np.errstate(divide="ignore"):
        fixed_P = form.to_internal(public_P[None], units)[0]
    problem = Problem(
        form,
        lnx_VN - units.centre[:, None],
        ln_loss_N - units.ln_scale,
        1.0 / data.sigma,
        np.isnan(fixed_P),
        huber_delta,
    )
    return problem, units, fixed_P


def exponent_grid(form: Form) -> Array:
    """Default starts: all combinations of a geometric grid per exponent, (S, Q)."""
    axis = GRID_2D if len(form.exponents) > 1 else GRID_1D
    return np.array(list(product(axis, repeat=len(form.exponents)))).reshape(-1, len(form.exponents))


def checked_starts(form: Form, exponent_starts: npt.ArrayLike) -> Array:
    """``exponent_starts`` as (S, Q), positive and finite (`FitInputError`)."""
    starts = np.atleast_2d(np.asarray(exponent_starts, dtype=float))
    if starts.shape[1] != len(form.exponents) or not len(starts):
        raise FitInputError(
            f"exponent_starts has shape {starts.shape}: give rows of ({', '.join(form.exponents)})"
        )
    if not (np.isfinite(starts).all() and (starts > 0).all()):
        raise FitInputError("exponent_starts holds a value that is not positive and finite")
    return starts


def search(problem: Problem, data: Data, units: Units, fixed_P: Array, exponents_SQ: Array) -> Minima:
    """Minima reached from the best starts and from as many spread over the rest, lowest first."""
    precision = data.weights * problem.precision**2
    loss_N = data.loss * np.exp(-units.ln_scale)
    starts = problem.form.starts(problem.z, loss_N, precision, fixed_P, exponents_SQ)
    lower, upper = problem.form.bounds()
    starts = np.where(problem.free, np.clip(starts, lower, upper), starts)
    with np.errstate(all="ignore"):
        log_curve, _ = problem.form.log_curve(starts, problem.z)
        rho, _, _ = influence((problem.log_loss - log_curve) * problem.precision, problem.delta)
    height = np.nan_to_num(rho @ data.weights, nan=np.inf, posinf=np.inf)
    order = np.argsort(height, kind="stable")
    spread = np.linspace(FOLLOWED_BEST, len(order) - 1, FOLLOWED_SPREAD).astype(int)
    followed = order[np.unique(np.r_[: min(FOLLOWED_BEST, len(order)), spread.clip(0, len(order) - 1)])]
    minima = minimise(problem, starts[followed], data.weights)
    rank = np.lexsort((minima.objective, ~minima.converged))
    return minima.take(rank)


@dataclass(frozen=True)
class _Draft:
    """Everything about a result that is known before the search."""

    form: Form
    data: Data
    group: str
    fixed: dict[str, float]
    huber_delta: float | None

    def without_answer(self, status: FitStatus, message: str) -> FitResult:
        return self._result({}, {}, None, None, status, message, {})

    def judge(self, problem: Problem, units: Units, minima: Minima) -> FitResult:
        """Turn the best minimum into a result with a status."""
        form, theta = self.form, minima.theta[0]
        with np.errstate(over="ignore"):
            public = form.to_public(theta[None], units)[0]
        parameters = dict(zip(form.parameters, public.tolist(), strict=True))
        parameters.update(self.fixed)
        diagnostics = self._diagnostics(problem, minima)
        objective = float(minima.objective[0])
        if not np.isfinite(public).all() or not np.isfinite(objective):
            return self.without_answer(
                FitStatus.FAILED, "no finite minimum: the parameters overflow in these units"
            )
        if not minima.converged[0]:
            message = f"no start converged: largest gradient cosine {diagnostics['gradient']:.1e}"
            return self._result(parameters, {}, None, objective, FitStatus.FAILED, message, diagnostics)
        lower, upper = form.bounds()
        at_bound = problem.free & ((theta <= lower) | (theta >= upper))
        varying = problem.free & ~at_bound
        jacobian = self._weighted_jacobian(problem, theta)
        if reason := self._undetermined(jacobian, varying, diagnostics):
            return self._result(
                parameters, {}, None, objective, FitStatus.NOT_IDENTIFIABLE, reason, diagnostics
            )
        covariance = self._covariance(problem, theta, jacobian, varying, units, diagnostics)
        errors: dict[str, float | None] = {
            name: float(np.sqrt(max(covariance[i, i], 0.0))) if varying[i] else None
            for i, name in enumerate(form.parameters)
        }
        status, message = FitStatus.CONVERGED, form.concern(parameters, self._inputs())
        if at_bound.any():
            names = [
                f"{n} = {parameters[n]:.4g}" for n, b in zip(form.parameters, at_bound, strict=True) if b
            ]
            status = FitStatus.BOUND_HIT
            message = f"on its bound: {', '.join(names)}; the other standard errors are conditional on it"
        return self._result(parameters, errors, covariance, objective, status, message, diagnostics)

    def _inputs(self) -> dict[str, Array]:
        return dict(zip(self.form.variables, self.data.x, strict=True))

    def _weighted_jacobian(self, problem: Problem, theta_P: Array) -> Array:
        _, jacobian = problem.form.log_curve(theta_P[None], problem.z)
        weighted: Array = jacobian[0] * np.sqrt(self.data.weights) * problem.precision
        return weighted

    def _diagnostics(self, problem: Problem, minima: Minima) -> dict[str, float]:
        theta = minima.theta[0]
        with np.errstate(all="ignore"):
            log_curve, _ = problem.form.log_curve(theta[None], problem.z)
            local = evaluate(problem, theta[None], self.data.weights[None])
        residual = problem.log_loss - log_curve[0]
        _, psi, _ = influence(residual * problem.precision, problem.delta)
        pull = np.sqrt(self.data.weights @ psi**2)
        jacobian = self._weighted_jacobian(problem, theta)
        lower, upper = problem.form.bounds()
        inside = problem.free & (theta > lower) & (theta < upper)
        length = np.linalg.norm(jacobian, axis=1) * pull
        cosine = np.abs(local.gradient[0]) / np.where(length > 0, length, 1.0)
        best = minima.objective[0]
        at_best = minima.objective <= best + SAME_OBJECTIVE * abs(best) + 1e-25
        dof = max(int((self.data.weights > 0).sum()) - int(problem.free.sum()), 1)
        share = self.data.weights / self.data.weights.mean()
        return {
            "gradient": float(cosine[inside].max(initial=0.0)),
            "starts": float(len(at_best)),
            "starts_at_best": float(at_best.mean()),
            "iterations": float(minima.iterations[0]),
            "residual_sd": float(np.sqrt((share * residual**2).sum() / dof)),
            "dof": float(dof),
        }

    def _undetermined(self, jacobian_PN: Array, varying: np.ndarray, diagnostics: dict[str, float]) -> str:
        names = np.array(self.form.parameters)
        length = np.linalg.norm(jacobian_PN, axis=1) / np.sqrt((self.data.weights / self.data.sigma**2).sum())
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
        """Inverse information x residual variance (Huber's form when robust), in public parameters.

        A known sigma is not trusted below the scatter: the variance is multiplied by max(1, chi^2 / dof).
        """
        log_curve, _ = problem.form.log_curve(theta_P[None], problem.z)
        residual = (problem.log_loss - log_curve[0]) * problem.precision
        _, psi, slope = influence(residual, problem.delta)
        weights = self.data.weights
        num_points, num_varying = int((weights > 0).sum()), int(varying.sum())
        variance = float(weights @ psi**2) / max(num_points - num_varying, 1)
        if problem.delta is not None:
            inside = float(weights @ slope / weights.sum())
            correction = 1 + num_varying / num_points * (1 - inside) / max(inside, 1e-12)
            variance *= (correction / max(inside, 1.0 / num_points)) ** 2
        if self.data.sigma_known:
            diagnostics["chi2_per_dof"] = variance
            variance = max(variance, 1.0)
        columns = jacobian_PN[varying]
        norms = np.linalg.norm(columns, axis=1)
        inverse = np.linalg.inv((columns / norms[:, None]) @ (columns / norms[:, None]).T)
        internal = np.zeros((len(theta_P), len(theta_P)))
        internal[np.ix_(varying, varying)] = variance * inverse / np.outer(norms, norms)
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
        ranges = {**self._inputs(), "loss": self.data.loss}
        return FitResult(
            form=self.form.name,
            group=self.group,
            parameters=parameters,
            standard_errors=errors,
            covariance=None if covariance is None else covariance.tolist(),
            fixed=self.fixed,
            huber_delta=self.huber_delta,
            objective=objective,
            n_points=len(self.data.loss),
            spec_ids=list(self.data.spec_ids),
            range={name: [float(v.min()), float(v.max())] for name, v in ranges.items()},
            status=status,
            message=message,
            diagnostics=diagnostics,
        )


def _array(name: str, values: npt.ArrayLike) -> Array:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise FitInputError(f"{name} does not hold numbers: {error}") from None
    if array.ndim != 1:
        raise FitInputError(f"{name} has {array.ndim} dimensions: give one value per point")
    return array


def _check_values(
    name: str, values: Array, num_points: int, ids: tuple[str, ...], *, zero_allowed: bool
) -> None:
    if len(values) != num_points:
        raise FitInputError(f"{name} has {len(values)} values, loss has {num_points}: give one per point")
    good = np.isfinite(values) & ((values >= 0) if zero_allowed else (values > 0))
    if not good.all():
        first = int(np.argmin(good))
        where = f"point {first}" + (f" (spec_id {ids[first]})" if ids else "")
        wanted = "not be negative" if zero_allowed else "be positive"
        raise FitInputError(f"{name} is {values[first]} at {where}: it must be finite and {wanted}")
