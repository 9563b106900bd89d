"""Where a search starts: exact non-negative coefficients, and the derivatives that refits share."""

import numpy as np
import pytest
from scipy.optimize import nnls

from analysis.fit_input import checked
from analysis.forms.base import form_named
from analysis.newton import _derivatives
from analysis.objective import evaluate, reweighted_information
from analysis.projection import non_negative_coefficients
from analysis.residuals import LOG
from analysis.solve import pose

CHINCHILLA = form_named("chinchilla")


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_non_negative_coefficients_equal_scipy_nnls(columns):
    rng = np.random.default_rng(columns)
    basis = rng.uniform(0, 1, (40, columns, 12))
    # Targets that pull some coefficients below zero: several subsets must win somewhere.
    target = np.einsum("smn,sm->sn", basis, rng.normal(0.3, 1.0, (40, columns))) + rng.normal(
        0, 0.1, (40, 12)
    )
    weights = rng.uniform(0.2, 3.0, 12)
    found = non_negative_coefficients(basis, target, weights)
    root = np.sqrt(weights)
    expected = np.array(
        [nnls((one * root).T, goal * root)[0] for one, goal in zip(basis, target, strict=True)]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    zeros = (expected == 0).sum(axis=1)
    assert len(set(zeros)) > 1


def test_equal_columns_and_overflow_give_finite_coefficients():
    basis = np.ones((2, 2, 5))
    basis[1, 0] = np.inf
    with np.errstate(invalid="ignore"):  # as the search does: steep exponents overflow on purpose
        found = non_negative_coefficients(basis, np.full((2, 5), 2.0), np.ones(5))
    assert found[0].sum() == pytest.approx(2.0)
    assert (found[1] == 0).all()


@pytest.mark.parametrize("delta", [None, 1e-3])
def test_refits_from_one_point_share_exact_derivatives(delta):
    rng = np.random.default_rng(0)
    x = {"params": np.exp(rng.uniform(17, 22, 30)), "tokens": np.exp(rng.uniform(20, 25, 30))}
    loss = CHINCHILLA.predict(CHINCHILLA.planted[0], x) * np.exp(rng.normal(0, 0.01, 30))
    problem, units, _ = pose(CHINCHILLA, checked(CHINCHILLA, x, loss), delta, {}, LOG)
    theta = CHINCHILLA.to_internal(CHINCHILLA.vector(CHINCHILLA.planted[0])[None], units)
    repeated, weights = np.repeat(theta, 50, axis=0), rng.integers(0, 4, (50, 30)).astype(float)
    together, metric = _derivatives(problem, repeated)(repeated, weights)
    one_by_one = evaluate(problem, repeated, weights)
    for name, expected in vars(one_by_one).items():
        scale = np.abs(expected).max()
        np.testing.assert_allclose(getattr(together, name), expected, rtol=1e-9, atol=1e-12 * scale)
    np.testing.assert_allclose(
        metric, reweighted_information(problem, repeated, weights), rtol=1e-9, atol=1e-12
    )
