"""Random tables at the public functions: a typed result or a typed error, never a traceback or a silent number."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.bootstrap import fit_with_bootstrap
from analysis.fit_result import FitInputError, FitResult, FitStatus
from analysis.forms.base import FORMS, form_named
from analysis.isoflop import fit_slices
from analysis.printed import printed_parameters
from analysis.solve import fit

pytestmark = pytest.mark.filterwarnings("error")

ODD = st.sampled_from([0.0, -1.0, float("nan"), float("inf"), 1e-300, 1e300, 5e-324])
POSITIVE = st.floats(1e-6, 1e30) | st.sampled_from([1e18, 2e18, 1e19])
LOSS = st.floats(0.01, 20.0) | st.just(2.0)


def column(values: st.SearchStrategy[float], length: int) -> st.SearchStrategy[list[float]]:
    return st.lists(values, min_size=length, max_size=length)


@st.composite
def tables(draw: st.DrawFn, odd: bool = False) -> tuple[str, dict[str, list[float]], list[float]]:
    name = draw(st.sampled_from(FORMS.names()))
    length = draw(st.integers(0 if odd else 1, 12))
    values = POSITIVE | ODD if odd else POSITIVE
    x = {variable: draw(column(values, length)) for variable in form_named(name).variables}
    return name, x, draw(column(LOSS | ODD if odd else LOSS, length))


def check(result: FitResult) -> None:
    """What every result must obey, whatever the data were."""
    document = json.loads(
        result.model_dump_json(), parse_constant=lambda text: pytest.fail(f"{text} in JSON")
    )
    assert FitResult.model_validate(document) == result
    errors = [value for value in result.standard_errors.values() if value is not None]
    assert all(math.isfinite(value) and value >= 0 for value in errors)
    assert all(math.isfinite(value) for value in result.parameters.values())
    if result.status is not FitStatus.CONVERGED:
        assert result.message
    if not result.usable:
        assert not errors and result.covariance is None and result.bootstrap is None
    if result.usable:
        assert set(result.parameters) == set(form_named(result.form).parameters)
        assert not errors or result.diagnostics["condition"] <= 1e8
        # A start handed back as the answer would have a gradient.
        assert result.diagnostics["gradient"] < 1e-4


@settings(max_examples=80, deadline=None)
@given(tables(), st.sampled_from([None, 1e-4, 1e-2, 10.0]))
def test_any_positive_table_gives_a_typed_result(table, delta):
    name, x, loss = table
    form = form_named(name)
    result = fit(form, x, loss, huber_delta=delta)
    check(result)
    if result.usable:
        printed_parameters(form, result)


@settings(max_examples=80, deadline=None)
@given(tables(odd=True))
def test_any_table_gives_a_result_or_a_named_error(table):
    name, x, loss = table
    try:
        check(fit(form_named(name), x, loss))
    except FitInputError as error:
        assert "\n" not in str(error)
        values = [value for column in (loss, *x.values()) for value in column]
        assert not values or any(not (math.isfinite(v) and 1e-100 <= v <= 1e100) for v in values)


@settings(max_examples=30, deadline=None)
@given(tables(), st.integers(1, 60))
def test_any_table_can_be_bootstrapped(table, n):
    name, x, loss = table
    result = fit_with_bootstrap(form_named(name), x, loss, n=n)
    check(result)
    if result.bootstrap is not None:
        assert result.bootstrap.n == n
        assert result.bootstrap.withdrawn == (not result.bootstrap.standard_errors)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1e17, 1e18, 1e19]), POSITIVE, LOSS), min_size=1, max_size=20))
def test_any_slices_give_a_size_law_or_say_why_not(rows):
    budget, params, loss = (np.array(values) for values in zip(*rows, strict=True))
    law = fit_slices(budget, params, loss)
    assert len(law.slices) == len(set(budget))
    assert (law.exponent is None) == (law.status is FitStatus.NOT_IDENTIFIABLE)
    if law.exponent is None:
        assert law.warnings
    for one in law.slices:
        check(one)
