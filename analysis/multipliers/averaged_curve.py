"""The arm-averaged curve L = E + A exp(-a (x - centre)), x = ln C, fitted to many studies at once.

Least squares in nats by variable projection: E and A are linear given a, so the search is over ln a
alone. Arrays have a leading axis S of studies (1 for a real one) and K rungs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.multipliers.base import Floats

Flags = NDArray[np.bool_]

MIN_EXPONENT, MAX_EXPONENT = 1e-3, 2.0
"""Exponents searched. Published ones lie between 0.03 and 0.6; a fit at either end is no fit."""

_COARSE, _FINE, _ROUNDS = 70, 21, 6


@dataclass(frozen=True)
class AveragedCurve:
    """The fit of S studies (leading axis of every array); see `fit_curve`."""

    exponent: Floats
    amplitude: Floats
    """A: excess loss at the centre, nats."""
    irreducible: Floats
    """E, nats; below 0 where the data bend less than a power law."""
    centre: Floats
    """Weighted mean of ln C."""
    inside: Flags
    """Whether the minimum is a law: E > 0, falling, the exponent inside its range."""
    rss: Floats
    """Weighted residual sum of squares, nats^2."""
    covariance: Floats
    """S x 3 x 3, of (a, A, E); residual variance rss / dof."""
    residual_dof: float
    """K - 3."""

    def excess(self, x_SK: Floats) -> Floats:
        """A exp(-a (x - centre)): fitted loss above E, nats."""
        z_SK = x_SK - self.centre[:, None]
        return self.amplitude[:, None] * np.exp(-self.exponent[:, None] * z_SK)

    def jacobian(self, x_SK: Floats) -> Floats:
        """Derivatives of the curve by (a, A, E), S x K x 3."""
        return _jacobian(x_SK - self.centre[:, None], self.exponent, self.amplitude)


def fit_curve(x_SK: Floats, loss_SK: Floats, weight_SK: Floats) -> AveragedCurve:
    """Fit E, A, a to the mean loss of two arms.

    Args:
        x_SK: ln compute.
        loss_SK: mean loss of the arms, nats.
        weight_SK: seeds of each rung.
    """
    centre_S = (weight_SK * x_SK).sum(-1) / weight_SK.sum(-1)
    z_SK = x_SK - centre_S[:, None]
    exponent_S = _search(z_SK, loss_SK, weight_SK)
    rss, amplitude, base = (part[:, 0] for part in _project(exponent_S[:, None], z_SK, loss_SK, weight_SK))
    jacobian_SK3 = _jacobian(z_SK, exponent_S, amplitude)
    normal_S33 = np.einsum("sk,ski,skj->sij", weight_SK, jacobian_SK3, jacobian_SK3)
    dof = z_SK.shape[1] - 3.0
    return AveragedCurve(
        exponent=exponent_S,
        amplitude=amplitude,
        irreducible=base,
        centre=centre_S,
        inside=(base > 0) & (amplitude > 0) & (exponent_S < 0.999 * MAX_EXPONENT),
        rss=rss,
        covariance=np.linalg.pinv(normal_S33, hermitian=True) * (rss / dof)[:, None, None],
        residual_dof=dof,
    )


def _jacobian(z_SK: Floats, exponent_S: Floats, amplitude_S: Floats) -> Floats:
    u_SK = np.exp(-exponent_S[:, None] * z_SK)
    return np.stack([-amplitude_S[:, None] * z_SK * u_SK, u_SK, np.ones_like(u_SK)], axis=-1)


def _search(z_SK: Floats, loss_SK: Floats, weight_SK: Floats) -> Floats:
    """Exponents of least rss: a grid over ln a, refined around its best point."""
    first, last = np.log(MIN_EXPONENT), np.log(MAX_EXPONENT)
    grid_SG = np.broadcast_to(np.linspace(first, last, _COARSE), (len(z_SK), _COARSE))
    step = (last - first) / (_COARSE - 1)
    rows = np.arange(len(z_SK))
    for _ in range(_ROUNDS):
        rss_SG, _, _ = _project(np.exp(grid_SG), z_SK, loss_SK, weight_SK)
        best_S = grid_SG[rows, np.argmin(rss_SG, axis=1)]
        grid_SG = np.clip(best_S[:, None] + np.linspace(-step, step, _FINE), first, last)
        step *= 2 / (_FINE - 1)
    exponent_S: Floats = np.exp(best_S)
    return exponent_S


def _project(
    exponent_SG: Floats, z_SK: Floats, loss_SK: Floats, weight_SK: Floats
) -> tuple[Floats, Floats, Floats]:
    """Best A and E for every exponent: rss, A, E, each of shape S x G."""
    u_SGK = np.exp(-exponent_SG[..., None] * z_SK[:, None, :])
    w = weight_SK[:, None, :]
    y = loss_SK[:, None, :]
    total = w.sum(-1)
    mean_y = (w * y).sum(-1) / total
    mean_u = (w * u_SGK).sum(-1) / total
    du, dy = u_SGK - mean_u[..., None], y - mean_y[..., None]
    amplitude = (w * du * dy).sum(-1) / (w * du * du).sum(-1)
    rss = (w * (dy - amplitude[..., None] * du) ** 2).sum(-1)
    return rss, amplitude, mean_y - amplitude * mean_u
