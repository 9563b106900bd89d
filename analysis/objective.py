"""The objective of a fit and its analytic derivatives, for many parameter sets at once.

objective_s = sum_n w_sn rho((ln L_n - ln f_n(theta_s)) / sigma_n), rho(u) = u^2/2 for |u| <= delta, else
delta (|u| - delta/2). It is the sum, never the mean. With J = d ln f, F = (second derivatives of f) / f and
s = 1/sigma,

    gradient = -sum w s psi J,     Hessian = sum w (s^2 psi' + s psi) J J^T - sum w s psi F.

For the linear residual L - f, J becomes f J and the term s psi J J^T vanishes.
"""

from dataclasses import dataclass

import numpy as np

from analysis.forms.base import Array, Form
from analysis.residuals import Residual


@dataclass(frozen=True)
class Problem:
    """A form and data in internal units: z (V, N), log_loss (N,), precision = 1/sigma (N,), free (P,)."""

    form: Form
    z: Array
    log_loss: Array
    precision: Array
    free: np.ndarray
    delta: float | None
    residual: Residual


@dataclass
class Local:
    """Objective (S,), gradient (S, P), Hessian (S, P, P)."""

    objective: Array
    gradient: Array
    hessian: Array

    def take(self, rows: np.ndarray) -> "Local":
        """The given rows."""
        return Local(self.objective[rows], self.gradient[rows], self.hessian[rows])

    def joined(self, other: "Local") -> "Local":
        """Rows of both."""
        return Local(
            *(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True))
        )

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
    residual_SN = problem.residual.of(problem.log_loss, log_curve_SN) * s_N
    steepness_SN = problem.residual.slope(log_curve_SN) * s_N
    rho, psi, slope = influence(residual_SN, problem.delta)
    pull_SN = weights_SN * psi * steepness_SN
    transposed = jacobian_SPN.transpose(0, 2, 1)
    gradient = -np.matmul(jacobian_SPN, pull_SN[..., None])[..., 0]
    outer_SN = weights_SN * slope * steepness_SN**2 + (1 - problem.residual.bend) * pull_SN
    hessian = np.matmul(jacobian_SPN * outer_SN[:, None], transposed)
    hessian -= problem.form.curvature(theta_SP, problem.z, jacobian_SPN, pull_SN)
    return Local(np.einsum("sn,sn->s", weights_SN, rho), gradient, hessian)


def reweighted_information(problem: Problem, theta_SP: Array, weights_SN: Array) -> Array:
    """sum w s^2 min(1, delta / |u|) J J^T (S, P, P): positive, unlike the Hessian; shapes the damping."""
    log_curve_SN, jacobian_SPN = problem.form.log_curve(theta_SP, problem.z)
    majorant_SN = weights_SN * (problem.precision * problem.residual.slope(log_curve_SN)) ** 2
    if problem.delta is not None:
        residual_SN = np.abs(problem.residual.of(problem.log_loss, log_curve_SN)) * problem.precision
        majorant_SN = majorant_SN * (problem.delta / np.maximum(residual_SN, problem.delta))
    information: Array = np.matmul(jacobian_SPN * majorant_SN[:, None], jacobian_SPN.transpose(0, 2, 1))
    return information
