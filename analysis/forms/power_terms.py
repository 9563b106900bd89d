"""loss = [E] + sum over terms of coefficient x variable^(-exponent): the shared body of three forms."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from analysis.forms.base import Array, Form, Units
from analysis.projection import non_negative_coefficients

# Exponents outside are not scaling laws: 1e-4 is a flat curve over any range that can be trained.
LOWEST_EXPONENT, HIGHEST_EXPONENT = 1e-4, 5.0
# Logarithm of the smallest coefficient a start may have, relative to the loss.
LOWEST_LN_COEFFICIENT = np.log(1e-9)


class PowerTerms(Form):
    """Abstract form made of power terms.

    Class attributes:
        terms: (coefficient, exponent) per row of `log_inputs`; terms may share an exponent.
        offset: name of the irreducible loss, or None.
    """

    terms: ClassVar[tuple[tuple[str, str], ...]]
    offset: ClassVar[str | None]

    def predict(self, parameters: Mapping[str, float], x: Mapping[str, npt.ArrayLike]) -> Array:
        """Loss at the inputs ``x``."""
        lnx = self.log_inputs(x)
        loss = np.full(lnx.shape[1:], parameters[self.offset] if self.offset else 0.0)
        for (coefficient, exponent), lnv in zip(self.terms, lnx, strict=True):
            loss = loss + parameters[coefficient] * np.exp(-parameters[exponent] * lnv)
        return loss

    def centre(self, lnx_VN: Array, fixed: Mapping[str, float]) -> Array:
        """Mean of ln x; 0 where the coefficient is fixed, since A x^-a fixes ln A at x = 1 only."""
        free = np.array([coefficient not in fixed for coefficient, _ in self.terms])
        return np.where(free, lnx_VN.mean(axis=1), 0.0)

    def to_internal(self, parameters_SP: Array, units: Units) -> Array:
        """(E / scale, ln A - ln scale - exponent x centre, exponent)."""
        theta = np.array(parameters_SP, dtype=float)
        for (coefficient, exponent), centre in zip(self.terms, units.centre, strict=True):
            a, e = self._index(coefficient), self._index(exponent)
            shift = theta[:, e] * centre if centre != 0 else 0.0
            theta[:, a] = np.log(theta[:, a]) - units.ln_scale - shift
        if self.offset:
            theta[:, self._index(self.offset)] *= np.exp(-units.ln_scale)
        return theta

    def to_public(self, theta_SP: Array, units: Units) -> Array:
        """Inverse of `to_internal`."""
        public = np.array(theta_SP, dtype=float)
        for (coefficient, exponent), centre in zip(self.terms, units.centre, strict=True):
            a, e = self._index(coefficient), self._index(exponent)
            public[:, a] = np.exp(theta_SP[:, a] + units.ln_scale + theta_SP[:, e] * centre)
        if self.offset:
            public[:, self._index(self.offset)] *= np.exp(units.ln_scale)
        return public

    def public_jacobian(self, theta_P: Array, units: Units) -> Array:
        """dA/d(ln A') = A, dA/d(exponent) = A x centre, dE/dE' = scale."""
        public = self.to_public(theta_P[None], units)[0]
        jacobian = np.eye(len(self.parameters))
        for (coefficient, exponent), centre in zip(self.terms, units.centre, strict=True):
            a, e = self._index(coefficient), self._index(exponent)
            jacobian[a, a] = public[a]
            jacobian[a, e] = public[a] * centre
        if self.offset:
            offset = self._index(self.offset)
            jacobian[offset, offset] = np.exp(units.ln_scale)
        return jacobian

    def bounds(self) -> tuple[Array, Array]:
        """E >= 0, exponents between 1e-4 and 5."""
        lower = np.full(len(self.parameters), -np.inf)
        upper = np.full(len(self.parameters), np.inf)
        for name in self.exponents:
            lower[self._index(name)], upper[self._index(name)] = LOWEST_EXPONENT, HIGHEST_EXPONENT
        if self.offset:
            lower[self._index(self.offset)] = 0.0
        return lower, upper

    def starts(
        self, z_VN: Array, loss_N: Array, weights_N: Array, fixed_P: Array, exponents_SQ: Array
    ) -> Array:
        """Coefficients by non-negative least squares on relative residuals, at each row of exponents."""
        num_starts = len(exponents_SQ)
        theta = np.broadcast_to(fixed_P, (num_starts, len(self.parameters))).copy()
        columns, places = [], []
        target = loss_N.copy()[None]
        for k, (coefficient, exponent) in enumerate(self.terms):
            e, a = self._index(exponent), self._index(coefficient)
            row = self.exponents.index(exponent)
            theta[:, e] = np.where(np.isnan(fixed_P[e]), exponents_SQ[:, row], fixed_P[e])
            curve_SN = np.exp(-theta[:, e, None] * z_VN[k])
            if np.isnan(fixed_P[a]):
                columns.append(curve_SN)
                places.append(a)
            else:
                target = target - np.exp(fixed_P[a]) * curve_SN
        if self.offset:
            o = self._index(self.offset)
            if np.isnan(fixed_P[o]):
                columns.append(np.ones((num_starts, len(loss_N))))
                places.append(o)
            else:
                target = target - fixed_P[o]
        if columns:
            solution = non_negative_coefficients(
                np.stack(columns, axis=1),
                np.broadcast_to(target, (num_starts, len(loss_N))),
                weights_N / loss_N**2,
            )
            theta[:, places] = solution
            for coefficient, _ in self.terms:
                a = self._index(coefficient)
                if a in places:
                    theta[:, a] = np.log(np.maximum(theta[:, a], np.exp(LOWEST_LN_COEFFICIENT)))
        return theta

    def log_curve(self, theta_SP: Array, z_VN: Array) -> tuple[Array, Array]:
        """With share s = term / f: d ln f / d ln A' = s, by the exponent -z s, by E 1/f."""
        num_points = z_VN.shape[1]
        jacobian = np.empty((*theta_SP.shape, num_points))
        total: Array | float = theta_SP[:, self._index(self.offset), None] if self.offset else 0.0
        for k, (coefficient, exponent) in enumerate(self.terms):
            a, e = self._index(coefficient), self._index(exponent)
            term = jacobian[:, a]
            np.multiply(theta_SP[:, e, None], -z_VN[k], out=term)
            term += theta_SP[:, a, None]
            np.exp(term, out=term)
            total = total + term
        inverse = 1.0 / total
        for name in self.exponents:
            jacobian[:, self._index(name)] = 0.0
        for k, (coefficient, exponent) in enumerate(self.terms):
            a, e = self._index(coefficient), self._index(exponent)
            jacobian[:, a] *= inverse
            jacobian[:, e] -= jacobian[:, a] * z_VN[k]
        if self.offset:
            jacobian[:, self._index(self.offset)] = inverse
        return np.log(total), jacobian

    def curvature(self, theta_SP: Array, z_VN: Array, jacobian_SPN: Array, weights_SN: Array) -> Array:
        """Block [[s, -z s], [-z s, z^2 s]] of each term; zero between terms and for E."""
        num_parameters = theta_SP.shape[1]
        curvature = np.zeros((len(theta_SP), num_parameters, num_parameters))
        for k, (coefficient, exponent) in enumerate(self.terms):
            a, e = self._index(coefficient), self._index(exponent)
            moments_N3 = np.stack([np.ones_like(z_VN[k]), -z_VN[k], z_VN[k] ** 2], axis=1)
            sums_S3 = (weights_SN * jacobian_SPN[:, a]) @ moments_N3
            curvature[:, a, a] = sums_S3[:, 0]
            curvature[:, a, e] = curvature[:, e, a] = sums_S3[:, 1]
            curvature[:, e, e] += sums_S3[:, 2]
        return curvature

    def move(self, theta_SP: Array, step_SP: Array) -> Array:
        """A step along which level and slope of the curve at the centre change linearly.

        With z = 0 at the centre, f = E + sum A' and -df/dz = sum s, s = A' x exponent. E, ln A' and the
        exponent trade against each other at constant level and slope: straight steps leave that valley.
        Rows whose E does not move, or would become negative, take the straight step in E.
        """
        straight = super().move(theta_SP, step_SP)
        bent = straight.copy()
        level = np.zeros(len(theta_SP))
        for coefficient, exponent in self.terms:
            a, e = self._index(coefficient), self._index(exponent)
            change = step_SP[:, a] + step_SP[:, e] / theta_SP[:, e]
            # ln(1 + change) while the slope keeps half its size, then its tangent: slopes stay positive.
            growth = np.where(change > -0.5, np.log1p(np.maximum(change, -0.5)), 2 * change + 1 - np.log(2))
            moves = step_SP[:, a] != 0
            bent[:, a] = np.where(
                moves, theta_SP[:, a] + growth + np.log(theta_SP[:, e] / straight[:, e]), theta_SP[:, a]
            )
            level += np.exp(theta_SP[:, a]) * (1 + step_SP[:, a]) - np.exp(bent[:, a])
        if self.offset:
            o = self._index(self.offset)
            offset = theta_SP[:, o] + step_SP[:, o] + level
            follows = (step_SP[:, o] != 0) & (offset >= 0)
            bent[:, o] = np.where(follows, offset, straight[:, o])
            straight_rows = (step_SP[:, o] != 0) & ~follows
            bent[straight_rows] = straight[straight_rows]
        return bent

    def impossible(self, name: str, value: float) -> str:
        """Coefficients are positive, E is not negative, exponents lie within the bounds."""
        if name == self.offset:
            return "" if value >= 0 else "an irreducible loss is not negative"
        if name in self.exponents:
            inside = LOWEST_EXPONENT <= value <= HIGHEST_EXPONENT
            return "" if inside else f"an exponent lies between {LOWEST_EXPONENT} and {HIGHEST_EXPONENT}"
        return "" if value > 0 else "a coefficient is positive"

    def needs_spread(self, variable: str, free: list[str]) -> bool:
        """One value of a variable determines at most one thing about its term."""
        coefficient, exponent = self.terms[self.variables.index(variable)]
        return len([n for n in (coefficient, exponent, self.offset) if n in free]) > 1

    def _index(self, name: str) -> int:
        return self.parameters.index(name)
