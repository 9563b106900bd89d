"""What a fit makes small: ln loss - ln predicted (the default), or loss - predicted."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from analysis.forms.base import Array
from attnres.errors import UserError


class Residual(ABC):
    """Residual r(ln loss, ln curve), in units of ln loss or, through ``unit``, of the loss.

    Class attributes:
        bend: second derivative of r by ln curve over the first: 0 for ln, 1 for linear.
    """

    name: ClassVar[str]
    bend: ClassVar[float]

    @abstractmethod
    def of(self, log_loss: Array, log_curve: Array) -> Array:
        """The residual."""

    @abstractmethod
    def slope(self, log_curve: Array) -> Array:
        """-dr / d ln curve."""

    @abstractmethod
    def unit(self, ln_scale: float) -> float:
        """Size of one internal residual in the unit of the input."""


class LogResidual(Residual):
    """ln L - ln f: relative errors; the same say for every size."""

    name, bend = "log", 0.0

    def of(self, log_loss: Array, log_curve: Array) -> Array:
        """ln L - ln f."""
        return log_loss - log_curve

    def slope(self, log_curve: Array) -> Array:
        """1."""
        return np.ones_like(log_curve)

    def unit(self, ln_scale: float) -> float:  # noqa: ARG002
        """1: logarithms have no unit."""
        return 1.0


class LinearResidual(Residual):
    """L - f in nats: what plain curve fitting minimises; some published laws were made so."""

    name, bend = "linear", 1.0

    def of(self, log_loss: Array, log_curve: Array) -> Array:
        """L - f."""
        return np.exp(log_loss) - np.exp(log_curve)

    def slope(self, log_curve: Array) -> Array:
        """f."""
        return np.exp(log_curve)

    def unit(self, ln_scale: float) -> float:
        """The loss scale that was divided out."""
        return float(np.exp(ln_scale))


LOG, LINEAR = LogResidual(), LinearResidual()


def residual_named(name: str) -> Residual:
    """The residual called ``name`` (``UserError`` when unknown)."""
    known: dict[str, Residual] = {LOG.name: LOG, LINEAR.name: LINEAR}
    if name not in known:
        raise UserError(f"unknown residual '{name}': known are {', '.join(sorted(known))}")
    return known[name]
