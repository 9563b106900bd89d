"""The interface of a fit form, and the registry of forms.

Shape suffixes: S starts (or refits), P parameters, V input variables, N points, Q exponents.
Inside the solver a form works on *internal* coordinates: inputs are centred logarithms z = ln x - centre, the
loss is divided by its geometric mean, coefficients of power terms are logarithms. Units then cancel exactly.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attnres.registry import Registry

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """What was taken out of the data: z = ln x - centre (V,), ln loss - ln_scale."""

    centre: Array
    ln_scale: float


class Form(ABC):
    """A law loss = f(parameters, x). Stateless; abstract or final: concrete forms are not subclassed.

    Class attributes:
        name: registered name. parameters: public names in order. variables: names of the inputs.
        exponents: the parameters in which the loss is not linear; the solver starts from a grid over them.
        planted: parameter sets that a generic test plants and recovers.
    """

    name: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]]
    variables: ClassVar[tuple[str, ...]]
    exponents: ClassVar[tuple[str, ...]]
    planted: ClassVar[tuple[Mapping[str, float], ...]]

    @abstractmethod
    def predict(self, parameters: Mapping[str, float], x: Mapping[str, npt.ArrayLike]) -> Array:
        """Loss at the inputs ``x`` (arrays or numbers per variable, broadcast together)."""

    @abstractmethod
    def centre(self, lnx_VN: Array, fixed: Mapping[str, float]) -> Array:
        """Centre of each variable's logarithm, chosen so that fixed parameters stay fixed coordinates."""

    @abstractmethod
    def to_internal(self, parameters_SP: Array, units: Units) -> Array:
        """Internal coordinates of public parameters; NaN columns stay NaN."""

    @abstractmethod
    def to_public(self, theta_SP: Array, units: Units) -> Array:
        """Public parameters of internal coordinates."""

    @abstractmethod
    def public_jacobian(self, theta_P: Array, units: Units) -> Array:
        """Derivatives (P, P) of the public parameters by the internal coordinates."""

    @abstractmethod
    def bounds(self) -> tuple[Array, Array]:
        """Lowest and highest internal coordinates (P,), infinite where free."""

    @abstractmethod
    def starts(
        self, z_VN: Array, loss_N: Array, weights_N: Array, fixed_P: Array, exponents_SQ: Array
    ) -> Array:
        """Starting points (S, P): the coefficients that fit best at each row of exponents.

        Args:
            z_VN, loss_N: inputs and loss in internal units. weights_N: precision of each relative residual.
            fixed_P: internal value of a fixed coordinate, NaN where free.
            exponents_SQ: exponents to start from.
        """

    @abstractmethod
    def log_curve(self, theta_SP: Array, z_VN: Array) -> tuple[Array, Array]:
        """ln f (S, N) and its derivatives by the coordinates (S, P, N)."""

    @abstractmethod
    def curvature(self, theta_SP: Array, z_VN: Array, jacobian_SPN: Array, weights_SN: Array) -> Array:
        """Sum over points of weight x (second derivatives of f) / f: (S, P, P)."""

    def log_inputs(self, x: Mapping[str, npt.ArrayLike]) -> Array:
        """ln of the form's variables, broadcast together: (V, ...)."""
        return np.stack(np.broadcast_arrays(*[np.log(np.asarray(x[v], dtype=float)) for v in self.variables]))

    def vector(self, parameters: Mapping[str, float]) -> Array:
        """``parameters`` as an array in the form's order."""
        return np.array([parameters[name] for name in self.parameters], dtype=float)

    def move(self, theta_SP: Array, step_SP: Array) -> Array:
        """Coordinates after a step, inside the bounds; to first order theta + step.

        A form bends the path where its valleys are curved, which halves the number of steps.
        """
        lower, upper = self.bounds()
        return np.clip(theta_SP + step_SP, lower, upper)

    def impossible(self, name: str, value: float) -> str:  # noqa: ARG002
        """Why parameter ``name`` cannot have ``value``; empty when it can."""
        return ""

    def needs_spread(self, variable: str, free: list[str]) -> bool:  # noqa: ARG002
        """Whether ``variable`` must take two values for the ``free`` parameters to be determined."""
        return True

    def defect(self, parameters: Mapping[str, float], x: Mapping[str, Array]) -> str:  # noqa: ARG002
        """Why a minimum on inputs ``x`` is no answer; empty when it is one."""
        return ""

    def concern(self, parameters: Mapping[str, float], x: Mapping[str, Array], loss: Array) -> str:  # noqa: ARG002
        """A warning about a converged fit on data ``x``, ``loss``; empty when there is none."""
        return ""


FORMS: Registry[type[Form]] = Registry("fit form", "analysis.forms")


def form_named(name: str) -> Form:
    """An instance of the registered form ``name``; unknown names list the known ones (``UserError``)."""
    return FORMS.get(name)()
