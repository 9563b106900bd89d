"""Damped Newton on a Huber (or least-squares) objective, many starts or refits at once.

objective_s = sum_n w_sn rho((ln L_n - ln f_n(theta_s)) / sigma_n), rho(u) = u^2/2 for |u| <= delta, else
delta (|u| - delta/2). It is the sum, never the mean, and every tolerance below is relative, so that the scale
of the objective does not matter. Derivatives are analytic: J = d ln f, F = (second derivatives of f) / f,

    gradient = -sum w s psi J,     Hessian = sum w (s^2 psi' + s psi) J J^T - sum w s psi F,    s = 1/sigma.
"""

from dataclasses import dataclass

import numpy as np

from analysis.forms.base import Array, Form

# Rows of a batch worked on together: 64 x 240 points x 5 parameters stay in the second-level cache.
CHUNK = 64
MAX_ITERATIONS = 300
# Converged when a full Newton step would move the curve by less than this in ln loss (root mean square).
STEP_TOLERANCE = 1e-10
# Or when it would lower the objective by less than this share: a move below 1e-6 standard errors.
GAIN_TOLERANCE = 1e-14
FIRST_DAMPING, LARGEST_DAMPING, NEGLIGIBLE_DAMPING = 1e-3, 1e12, 1e-9


@dataclass(frozen=True)
class Problem:
    """A form and data in internal units: z (V, N), log_loss (N,), precision = 1/sigma (N,), free (P,)."""

    form: Form
    z: Array
    log_loss: Array
    precision: Array
    free: np.ndarray
    delta: float | None


@dataclass
class Minima:
    """Where the search ended, one row per start: theta (S, P), the others (S,)."""

    theta: Array
    objective: Array
    converged: np.ndarray
    iterations: np.ndarray

    @classmethod
    def empty(cls, theta_SP: Array) -> "Minima":
        """Starts as they are, nothing searched yet."""
        size = len(theta_SP)
        zeros = np.zeros(size, dtype=int)
        return cls(theta_SP.copy(), np.full(size, np.inf), np.zeros(size, dtype=bool), zeros)

    def take(self, rows: np.ndarray) -> "Minima":
        """The given rows, in that order."""
        return Minima(self.theta[rows], self.objective[rows], self.converged[rows], self.iterations[rows])


@dataclass
class Local:
    """Objective (S,), gradient (S, P), Hessian (S, P, P); scale (S, P): reweighted diagonal."""

    objective: Array
    gradient: Array
    hessian: Array
    scale: Array

    def take(self, rows: np.ndarray) -> "Local":
        """The given rows."""
        return Local(self.objective[rows], self.gradient[rows], self.hessian[rows], self.scale[rows])

    def put(self, rows: np.ndarray, other: "Local") -> None:
        """Overwrite the rows where ``rows`` is true by those of ``other``."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[rows] = theirs[rows]


def influence(residual: Array, delta: float | None) -> tuple[Array, Array, Array]:
    """rho, psi = rho', psi' of standardised residuals."""
    if delta is None:
        return 0.5 * residual**2, residual, np.ones_like(residual)
    psi = np.clip(residual, -delta, delta)
    return psi * (residual - 0.5 * psi), psi, (psi == residual).astype(float)


def evaluate(problem: Problem, theta_SP: Array, weights_SN: Array) -> Local:
    """Objective, gradient, exact Hessian and damping scale at each row of ``theta_SP``."""
    log_curve_SN, jacobian_SPN = problem.form.log_curve(theta_SP, problem.z)
    s_N = problem.precision
    residual_SN = (problem.log_loss - log_curve_SN) * s_N
    rho, psi, slope = influence(residual_SN, problem.delta)
    pull_SN = weights_SN * psi * s_N
    transposed = jacobian_SPN.transpose(0, 2, 1)
    gradient = -np.matmul(jacobian_SPN, pull_SN[..., None])[..., 0]
    outer_SN = weights_SN * slope * s_N**2 + pull_SN
    hessian = np.matmul(jacobian_SPN * outer_SN[:, None], transposed)
    hessian -= problem.form.curvature(theta_SP, problem.z, jacobian_SPN, pull_SN)
    if problem.delta is None:
        majorant_SN = weights_SN * s_N**2
    else:
        majorant_SN = weights_SN * s_N**2 * (problem.delta / np.maximum(np.abs(residual_SN), problem.delta))
    scale = np.matmul(jacobian_SPN**2, majorant_SN[..., None])[..., 0]
    return Local(np.einsum("sn,sn->s", weights_SN, rho), gradient, hessian, scale)


def minimise(problem: Problem, starts_SP: Array, weights: Array) -> Minima:
    """Nearest minimum of every start.

    Args:
        starts_SP: internal coordinates. weights: (N,) for all starts, or (S, N) one row each.
    """
    weights_SN = np.broadcast_to(weights, (len(starts_SP), problem.z.shape[1]))
    parts = [
        _descend(problem, starts_SP[i : i + CHUNK], weights_SN[i : i + CHUNK])
        for i in range(0, len(starts_SP), CHUNK)
    ]
    return Minima(
        *(np.concatenate(column) for column in zip(*(vars(p).values() for p in parts), strict=True))
    )


def _descend(problem: Problem, starts_SP: Array, weights_SN: Array) -> Minima:
    lower, upper = problem.form.bounds()
    result = Minima.empty(np.clip(starts_SP, lower, upper))
    rows = np.arange(len(starts_SP))
    theta, weights = result.theta.copy(), np.ascontiguousarray(weights_SN)
    total_S = weights @ problem.precision**2
    damping = np.full(len(rows), FIRST_DAMPING)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        local = evaluate(problem, theta, weights)
        for iteration in range(1, MAX_ITERATIONS + 1):
            step = _step(local, theta, damping, problem.free, lower, upper)
            trial = np.clip(theta + step, lower, upper)
            step = trial - theta
            moved = np.sqrt((local.scale * step**2).sum(axis=1) / total_S)
            there = evaluate(problem, trial, weights)
            downhill = np.einsum("sp,sp->s", local.gradient, step) <= 0
            accepted = downhill & (there.objective <= local.objective)
            predicted = np.abs(np.einsum("sp,sp->s", local.gradient, step))
            small = (moved < STEP_TOLERANCE) | (predicted < GAIN_TOLERANCE * local.objective)
            small &= (damping <= FIRST_DAMPING) & np.isfinite(local.hessian).all(axis=(1, 2))
            theta = np.where(accepted[:, None], trial, theta)
            local.put(accepted, there)
            damping = np.where(accepted, damping / 10, np.maximum(damping, NEGLIGIBLE_DAMPING) * 10)
            damping[accepted & (damping < NEGLIGIBLE_DAMPING)] = 0.0
            done = small | (damping > LARGEST_DAMPING) | ~np.isfinite(local.objective)
            if done.any() or iteration == MAX_ITERATIONS:
                finished = done if iteration < MAX_ITERATIONS else np.ones_like(done)
                at = rows[finished]
                result.theta[at] = theta[finished]
                result.objective[at] = local.objective[finished]
                result.converged[at] = small[finished]
                result.iterations[at] = iteration
                keep = ~finished
                rows, theta, weights, damping = rows[keep], theta[keep], weights[keep], damping[keep]
                total_S, local = total_S[keep], local.take(keep)
            if not len(rows):
                break
    return result


def _step(
    local: Local, theta_SP: Array, damping_S: Array, free_P: np.ndarray, lower: Array, upper: Array
) -> Array:
    """Solve (H + damping diag(scale)) step = -gradient over the coordinates that may move."""
    gradient = local.gradient
    pinned = ((theta_SP <= lower) & (gradient > 0)) | ((theta_SP >= upper) & (gradient < 0))
    pinned |= ~free_P
    root = np.sqrt(np.where(local.scale > 0, local.scale, 1.0))
    matrix = local.hessian / (root[:, :, None] * root[:, None, :])
    diagonal = np.arange(matrix.shape[1])
    # 1e-15 keeps an exactly singular matrix solvable; it is far below what the data can resolve.
    matrix[:, diagonal, diagonal] += damping_S[:, None] + 1e-15
    matrix = np.where(pinned[:, :, None] | pinned[:, None, :], 0.0, matrix)
    matrix[:, diagonal, diagonal] += pinned
    right = np.where(pinned, 0.0, -gradient / root)
    usable = np.isfinite(matrix).all(axis=(1, 2)) & np.isfinite(right).all(axis=1)
    matrix[~usable] = np.eye(matrix.shape[1])
    right[~usable] = 0.0
    return np.linalg.solve(matrix, right[..., None])[..., 0] / root
