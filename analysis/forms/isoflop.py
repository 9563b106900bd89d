"""loss = loss_min + curvature (ln N - ln n_opt)^2: one slice of equal compute, a parabola in ln N."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from analysis.forms.base import FORMS, Array, Form, Units

LOSS, OPTIMUM, CURVATURE = range(3)
# A start outside the sizes by more than ten ranges would only mean that the slice is straight.
FARTHEST_START = 10.0
# Adding a cubic term must not move the optimum by more than this share; off-centre slices of a Chinchilla
# surface exceed it long before the exponent of N*(C) is 2 % off.
LARGEST_CUBIC_SHIFT = 0.1


@FORMS.register("isoflop")
class IsoFlop(Form):
    """loss = loss_min + curvature (ln N - ln n_opt)^2 (Hoffmann et al., arXiv 2203.15556, approach 2)."""

    name = "isoflop"
    parameters = ("loss_min", "n_opt", "curvature")
    variables = ("params",)
    exponents = ()
    planted = (
        {"loss_min": 2.6, "n_opt": 4.0e8, "curvature": 0.05},
        {"loss_min": 1.4, "n_opt": 9.0e8, "curvature": 0.011},
    )

    def predict(self, parameters: Mapping[str, float], x: Mapping[str, npt.ArrayLike]) -> Array:
        """Loss at sizes ``x["params"]``."""
        distance = self.log_inputs(x)[0] - np.log(parameters["n_opt"])
        return np.asarray(parameters["loss_min"] + parameters["curvature"] * distance**2)

    def inverse(self, parameters: Mapping[str, float], loss: npt.ArrayLike) -> Array:
        """The larger of the two sizes with this ``loss``; NaN below loss_min."""
        excess = np.asarray(loss, dtype=float) - parameters["loss_min"]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(parameters["n_opt"] * np.exp(np.sqrt(excess / parameters["curvature"])))

    def centre(self, lnx_VN: Array, fixed: Mapping[str, float]) -> Array:  # noqa: ARG002
        """Mean of ln N."""
        centre: Array = lnx_VN.mean(axis=1)
        return centre

    def to_internal(self, parameters_SP: Array, units: Units) -> Array:
        """(loss_min / scale, ln n_opt - centre, curvature / scale)."""
        theta = np.array(parameters_SP, dtype=float)
        theta[:, [LOSS, CURVATURE]] *= np.exp(-units.ln_scale)
        theta[:, OPTIMUM] = np.log(theta[:, OPTIMUM]) - units.centre[0]
        return theta

    def to_public(self, theta_SP: Array, units: Units) -> Array:
        """Inverse of `to_internal`."""
        public = np.array(theta_SP, dtype=float)
        public[:, [LOSS, CURVATURE]] *= np.exp(units.ln_scale)
        public[:, OPTIMUM] = np.exp(public[:, OPTIMUM] + units.centre[0])
        return public

    def public_jacobian(self, theta_P: Array, units: Units) -> Array:
        """diag(scale, n_opt, scale)."""
        scale = np.exp(units.ln_scale)
        return np.diag([scale, self.to_public(theta_P[None], units)[0, OPTIMUM], scale])

    def bounds(self) -> tuple[Array, Array]:
        """None: a curvature below zero is found and reported, not hidden on a bound."""
        return np.full(3, -np.inf), np.full(3, np.inf)

    def starts(
        self, z_VN: Array, loss_N: Array, weights_N: Array, fixed_P: Array, exponents_SQ: Array
    ) -> Array:
        """The least-squares parabola on relative residuals."""
        z_N, root_N = z_VN[0], np.sqrt(weights_N) / loss_N
        columns = np.stack([np.ones_like(z_N), z_N, z_N**2]) * root_N
        level, slope, curvature = np.linalg.lstsq(columns.T, loss_N * root_N, rcond=None)[0]
        curvature = curvature if curvature != 0 else 1e-12
        farthest = FARTHEST_START * np.ptp(z_N)
        optimum = np.clip(-slope / (2 * curvature), -farthest, farthest)
        theta = np.array([level - curvature * optimum**2, optimum, curvature])
        if (theta[LOSS] + curvature * (z_N - optimum) ** 2 <= 0).any():  # no logarithm there: start flat
            theta = np.array([loss_N.min(), z_N[loss_N.argmin()], np.ptp(loss_N) / np.ptp(z_N) ** 2])
        return np.repeat(np.where(np.isnan(fixed_P), theta, fixed_P)[None], len(exponents_SQ), axis=0)

    def log_curve(self, theta_SP: Array, z_VN: Array) -> tuple[Array, Array]:
        """With u = z - optimum: d f = (1, -2 curvature u, u^2)."""
        distance = z_VN[0] - theta_SP[:, OPTIMUM, None]
        curvature = theta_SP[:, CURVATURE, None]
        loss = theta_SP[:, LOSS, None] + curvature * distance**2
        jacobian = np.stack([np.ones_like(distance), -2 * curvature * distance, distance**2], axis=1)
        return np.log(loss), jacobian / loss[:, None]

    def curvature(self, theta_SP: Array, z_VN: Array, jacobian_SPN: Array, weights_SN: Array) -> Array:
        """d2f/d(optimum)^2 = 2 curvature, d2f/d(optimum)d(curvature) = -2 u."""
        over_loss_SN = weights_SN * jacobian_SPN[:, LOSS]
        distance = z_VN[0] - theta_SP[:, OPTIMUM, None]
        second = np.zeros((len(over_loss_SN), 3, 3))
        second[:, OPTIMUM, OPTIMUM] = 2 * theta_SP[:, CURVATURE] * over_loss_SN.sum(axis=1)
        second[:, OPTIMUM, CURVATURE] = -2 * (over_loss_SN * distance).sum(axis=1)
        second[:, CURVATURE, OPTIMUM] = second[:, OPTIMUM, CURVATURE]
        return second

    def impossible(self, name: str, value: float) -> str:
        """n_opt, loss_min and curvature are positive."""
        return "" if value > 0 else f"{name} is positive"

    def needs_spread(self, variable: str, free: list[str]) -> bool:  # noqa: ARG002
        """Only the level can be found at one size."""
        return free != ["loss_min"]

    def defect(self, parameters: Mapping[str, float], x: Mapping[str, Array]) -> str:
        """No minimum, or one outside the sizes that were run."""
        sizes = x["params"]
        if parameters["curvature"] <= 0:
            return "curvature is not positive: the slice has no minimum"
        if parameters["loss_min"] <= 0:
            return (
                f"the parabola falls to a loss of {parameters['loss_min']:.3g}: no description of the slice"
            )
        if not sizes.min() <= parameters["n_opt"] <= sizes.max():
            return (
                f"optimum at grid edge: n_opt {parameters['n_opt']:.3g} lies outside the sizes "
                f"{sizes.min():.3g} to {sizes.max():.3g}"
            )
        return ""

    def concern(self, parameters: Mapping[str, float], x: Mapping[str, Array], loss: Array) -> str:
        """Optimum between the last two sizes at an end, or moved by a cubic term (an asymmetric slice)."""
        sizes = np.unique(x["params"])
        concerns = []
        if not sizes[1] <= parameters["n_opt"] <= sizes[-2]:
            concerns.append("optimum at grid edge")
        if len(sizes) > 4 and (shift := cubic_shift(parameters["n_opt"], x["params"], loss)):
            concerns.append(shift)
        return "; ".join(concerns)


def cubic_shift(n_opt: float, params: Array, loss: Array) -> str:
    """A warning when a cubic term in ln N moves the optimum by more than 10 %; else empty."""
    z = np.log(params / n_opt)
    _, slope, square, cube = np.linalg.lstsq(np.vander(z, 4, increasing=True), loss, rcond=None)[0]
    # The minimum of the cubic: the root of its derivative at which it bends upwards.
    root = square**2 - 3 * slope * cube
    if root <= 0:
        return "asymmetric slice: with a cubic term it has no minimum"
    optimum = -slope / (square + np.sqrt(root))
    if abs(optimum) <= LARGEST_CUBIC_SHIFT:
        return ""
    return f"asymmetric slice: a cubic term moves n_opt by {np.expm1(optimum):+.0%}"
