"""Covariance of a Huber fit whose delta may lie far below the noise.

The textbook formula needs the share of residuals inside delta. With delta = 1e-4 and noise 0.008 that is a
handful of points, and its 95 % intervals covered 70 % in a simulation of 240 points; with the indicator
smoothed over a kernel width they cover 92 to 95 %, and where delta exceeds the noise nothing changes.
"""

import numpy as np
from scipy.special import ndtr

from analysis.forms.base import Array

# Points beyond any kernel still count a little: the matrix stays invertible, the errors become huge.
LEAST_SLOPE = 1e-9


def robust_sd(residual_N: Array) -> float:
    """Standard deviation, or the quartiles' 1.349 sd apart if that is smaller (Silverman's choice)."""
    low, high = np.percentile(residual_N, [25, 75])
    return float(min(residual_N.std(), (high - low) / 1.349))


def sandwich(columns_PN: Array, residual_N: Array, weights_N: Array, delta: float) -> Array:
    """bread^-1 meat bread^-1: bread = sum slope J J^T, meat = sum w psi^2 J J^T.

    Args:
        columns_PN: derivatives times the root of the weights. residual_N: standardised.

    ``slope`` is the chance that a residual, moved by a normal kernel of width h, lies within delta.
    """
    width = max(0.9 * robust_sd(residual_N[weights_N > 0]) * len(residual_N) ** -0.2, 1e-3 * delta)
    slope_N = ndtr((delta - residual_N) / width) - ndtr((-delta - residual_N) / width)
    slope_N = np.maximum(slope_N, LEAST_SLOPE)
    psi_N = np.clip(residual_N, -delta, delta)
    bread = np.linalg.inv((columns_PN * slope_N) @ columns_PN.T)
    meat = (columns_PN * (weights_N * psi_N**2)) @ columns_PN.T
    covariance: Array = bread @ meat @ bread
    return covariance
