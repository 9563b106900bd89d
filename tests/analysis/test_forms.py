"""Every registered form: derivatives, recovery of planted parameters, inverse, JSON. A new form joins by itself."""

import json

import numpy as np
import pytest

from analysis.fit_input import checked
from analysis.fit_result import FitResult, FitStatus, read_fit_result
from analysis.forms.base import FORMS, Form, Units, form_named
from analysis.isoflop import fit_slices
from analysis.objective import evaluate
from analysis.residuals import LINEAR, LOG
from analysis.solve import fit, pose
from attnres.errors import UserError
from attnres.files import write_json

NAMES = FORMS.names()
RANGES = {
    "compute": (1e17, 1e20),
    "params": (3e7, 3e9),
    "tokens": (1e9, 1e11),
    "tokens_per_param": (5.0, 500.0),
}


def planted_cases() -> list:
    return [
        pytest.param(name, index, id=f"{name}-{index}")
        for name in NAMES
        for index in range(len(form_named(name).planted))
    ]


def inputs(form: Form, points: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {v: np.exp(rng.uniform(*np.log(RANGES[v]), size=points)) for v in form.variables}


def noisy(form: Form, index: int, seed: int, sd: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = inputs(form, seed=seed)
    noise = np.random.default_rng(seed + 100).normal(0, sd, 24)
    return x, form.predict(form.planted[index], x) * np.exp(noise)


def test_the_four_forms_of_the_specification_are_registered():
    assert {"power_law", "saturating", "chinchilla", "isoflop"} <= set(NAMES)
    with pytest.raises(UserError, match=r"unknown fit form 'cubic'.*chinchilla.*power_law"):
        form_named("cubic")


@pytest.mark.parametrize(("name", "index"), planted_cases())
def test_planted_parameters_are_recovered_without_noise(name, index):
    form = form_named(name)
    x = inputs(form)
    result = fit(form, x, form.predict(form.planted[index], x), group="planted")
    assert result.status is FitStatus.CONVERGED
    assert set(result.parameters) == set(form.parameters)
    for parameter, truth in form.planted[index].items():
        assert result.parameters[parameter] == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(("name", "index"), planted_cases())
@pytest.mark.parametrize("delta", [1e-3, 1e-2])
def test_planted_parameters_are_recovered_by_the_robust_fit_too(name, index, delta):
    form = form_named(name)
    x = inputs(form)
    result = fit(form, x, form.predict(form.planted[index], x), huber_delta=delta)
    assert result.parameters == pytest.approx(dict(form.planted[index]), rel=1e-6)


@pytest.mark.parametrize(("name", "index"), planted_cases())
def test_derivatives_equal_finite_differences(name, index):
    form = form_named(name)
    x, loss = noisy(form, index, 1, 0.01)
    data = checked(form, x, loss)
    problem, units, _ = pose(form, data, None, {}, LOG)
    theta = form.to_internal(form.vector(form.planted[index])[None], units)[0]
    _, jacobian = form.log_curve(theta[None], problem.z)
    for p in range(len(theta)):
        step = 1e-6 * max(1.0, abs(theta[p]))
        up, down = theta.copy(), theta.copy()
        up[p] += step
        down[p] -= step
        numeric = (form.log_curve(up[None], problem.z)[0] - form.log_curve(down[None], problem.z)[0]) / (
            2 * step
        )
        np.testing.assert_allclose(jacobian[0, p], numeric[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("residual", [LOG, LINEAR], ids=["log", "linear"])
@pytest.mark.parametrize("delta", [None, 0.008])
@pytest.mark.parametrize(("name", "index"), planted_cases())
def test_gradient_and_hessian_equal_finite_differences(name, index, delta, residual):
    form = form_named(name)
    x, loss = noisy(form, index, 2, 0.01)
    rng = np.random.default_rng(5)
    sigma, weights = rng.uniform(0.5, 2.0, 24), rng.uniform(0.2, 3.0, 24)[None]
    problem, units, _ = pose(form, checked(form, x, loss, sigma=sigma), delta, {}, residual)
    theta = form.to_internal(form.vector(form.planted[index])[None], units)[0] * 1.001
    here = evaluate(problem, theta[None], weights)
    for p in range(len(theta)):
        # Small enough that no residual crosses delta between the two points: rho is C1, psi is not smooth.
        step = 1e-6 * max(1.0, abs(theta[p]))
        ends = []
        for sign in (1, -1):
            moved = theta.copy()
            moved[p] += sign * step
            ends.append(evaluate(problem, moved[None], weights))
        gradient = (ends[0].objective - ends[1].objective) / (2 * step)
        column = (ends[0].gradient - ends[1].gradient) / (2 * step)
        scale = np.abs(here.hessian[0]).max()
        np.testing.assert_allclose(here.gradient[0, p], gradient[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(here.hessian[0, p], column[0], rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize(("name", "index"), planted_cases())
def test_public_jacobian_equals_finite_differences_and_internal_is_inverted(name, index):
    form = form_named(name)
    units = Units(form.centre(form.log_inputs(inputs(form)), {}), 0.9)
    public = form.vector(form.planted[index])
    theta = form.to_internal(public[None], units)[0]
    np.testing.assert_allclose(form.to_public(theta[None], units)[0], public, rtol=1e-12)
    analytic = form.public_jacobian(theta, units)
    for p in range(len(theta)):
        step = np.zeros_like(theta)
        step[p] = 1e-7
        ends = [form.to_public((theta + sign * step)[None], units)[0] for sign in (1, -1)]
        np.testing.assert_allclose(analytic[:, p] / public, (ends[0] - ends[1]) / 2e-7 / public, atol=1e-6)


@pytest.mark.parametrize(("name", "index"), planted_cases())
def test_a_move_is_its_step_to_first_order_and_stays_inside_the_bounds(name, index):
    form = form_named(name)
    units = Units(form.centre(form.log_inputs(inputs(form)), {}), 0.9)
    theta = form.to_internal(form.vector(form.planted[index])[None], units)
    rng = np.random.default_rng(0)
    direction = rng.normal(size=(50, theta.shape[1]))
    small = form.move(np.repeat(theta, 50, axis=0), 1e-6 * direction)
    np.testing.assert_allclose((small - theta) / 1e-6, direction, atol=1e-3)
    large = form.move(np.repeat(theta, 50, axis=0), 100 * direction)
    lower, upper = form.bounds()
    assert np.isfinite(large).all()
    assert ((large >= lower) & (large <= upper)).all()


@pytest.mark.parametrize(("name", "index"), [case for case in planted_cases() if "chinchilla" not in case.id])
def test_the_inverse_returns_to_the_input(name, index):
    form = form_named(name)
    parameters = form.planted[index]
    if name == "isoflop":
        params = parameters["n_opt"] * np.array([1.5, 4.0])
        loss = form.predict(parameters, {"params": params})
        np.testing.assert_allclose(form.inverse(parameters, loss), params, rtol=1e-9)
        assert np.isnan(form.inverse(parameters, parameters["loss_min"] - 0.1))
        return
    compute = np.geomspace(1e17, 1e22, 9)
    x = {"compute": compute, **({"tokens_per_param": 20.0} if name == "overtraining" else {})}
    np.testing.assert_allclose(form.inverse(parameters, form.predict(parameters, x)), compute, rtol=1e-9)
    assert np.isnan(form.inverse(parameters, parameters.get("E", 0.0) - 0.1))


def test_the_chinchilla_frontier_is_the_lowest_loss_at_its_compute():
    form = form_named("chinchilla")
    for parameters in form.planted:
        compute = np.array([1e19, 5.76e23])
        frontier = form.frontier(parameters, compute)
        np.testing.assert_allclose(6 * frontier.params * frontier.tokens, compute, rtol=1e-12)
        for factor in (0.9, 0.999, 1.001, 1.1):
            x = {"params": frontier.params * factor, "tokens": frontier.tokens / factor}
            assert (form.predict(parameters, x) > frontier.loss).all()
        np.testing.assert_allclose(form.inverse_frontier(parameters, frontier.loss), compute, rtol=1e-9)
        assert np.isnan(form.inverse_frontier(parameters, parameters["E"]))
        exponent = np.log(frontier.params[1] / frontier.params[0]) / np.log(compute[1] / compute[0])
        assert exponent == pytest.approx(parameters["beta"] / (parameters["alpha"] + parameters["beta"]))


@pytest.mark.parametrize(("name", "index"), planted_cases())
def test_results_round_trip_through_json(name, index):
    form = form_named(name)
    x, loss = noisy(form, index, 3, 0.001)
    result = fit(form, x, loss, group="arm", spec_ids=[f"id{i}" for i in range(24)])
    text = result.model_dump_json()
    assert FitResult.model_validate_json(text) == result
    assert "NaN" not in text and "Infinity" not in text


@pytest.mark.parametrize(("name", "index"), planted_cases())
def test_a_file_says_which_parameter_each_row_of_the_covariance_is(name, index, tmp_path):
    """Files sort their keys; the covariance is in the form's order, which `parameter_names` keeps."""
    form = form_named(name)
    x, loss = noisy(form, index, 3, 0.001)
    result = fit(form, x, loss, group="arm")
    write_json(tmp_path / "fit.json", result.model_dump(mode="json"))
    raw = json.loads((tmp_path / "fit.json").read_text())
    assert raw["parameter_names"] == list(form.parameters)
    for i, parameter in enumerate(raw["parameter_names"]):
        error = raw["standard_errors"][parameter]
        assert error is None or error**2 == pytest.approx(raw["covariance"][i][i], rel=1e-12)
    again = read_fit_result(tmp_path / "fit.json")
    assert again == result
    assert list(again.parameters) == list(again.standard_errors) == list(form.parameters)


def test_a_covariance_that_is_not_one_row_a_parameter_is_refused(tmp_path):
    form = form_named("power_law")
    x, loss = noisy(form, 0, 3, 0.001)
    raw = fit(form, x, loss).model_dump(mode="json")
    for change, words in (
        ({"covariance": [[1.0]]}, "covariance is not 2 x 2"),
        ({"parameter_names": ["A", "beta"]}, "names are A, beta, values are of A, alpha"),
        ({"parameters": {"A": 1.0}}, "values are of A"),
    ):
        write_json(tmp_path / "fit.json", raw | change)
        with pytest.raises(UserError, match=words) as refusal:
            read_fit_result(tmp_path / "fit.json")
        assert "python -m analysis fits" in str(refusal.value)
    del raw["parameter_names"]
    write_json(tmp_path / "fit.json", raw)
    with pytest.raises(UserError, match="parameter_names: Field required"):
        read_fit_result(tmp_path / "fit.json")


# isoFLOP slices


def chinchilla_slices(offset: float, half_width: float = 1.0, points: int = 9):
    """Noise-free slices of an asymmetric surface, sizes spread around n_opt x e^offset."""
    form = form_named("chinchilla")
    surface = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
    budgets, sizes, losses = [], [], []
    for budget in np.geomspace(1e18, 1e21, 5):
        n_opt = form.frontier(surface, budget).params
        params = n_opt * np.exp(offset + np.linspace(-half_width, half_width, points))
        budgets.append(np.full(points, budget))
        sizes.append(params)
        losses.append(form.predict(surface, {"params": params, "tokens": budget / (6 * params)}))
    truth = surface["beta"] / (surface["alpha"] + surface["beta"])
    return np.concatenate(budgets), np.concatenate(sizes), np.concatenate(losses), truth


def test_isoflop_slices_give_the_exponent_of_a_centred_grid():
    budget, params, loss, truth = chinchilla_slices(0.0)
    law = fit_slices(budget, params, loss)
    assert law.used == 5
    assert law.exponent == pytest.approx(truth, rel=0.02)
    assert not any("edge" in warning for warning in law.warnings)


@pytest.mark.parametrize("offset", [-2.5, -1.2, -0.95, 0.95, 1.2, 2.5])
def test_f15_an_optimum_at_the_grid_edge_is_right_or_warned_about(offset):
    budget, params, loss, truth = chinchilla_slices(offset)
    law = fit_slices(budget, params, loss)
    right = law.exponent is not None and law.exponent == pytest.approx(truth, rel=0.02)
    warned = sum("optimum at grid edge" in warning for warning in law.warnings)
    assert right or warned == 5
    if abs(offset) > 2:
        assert warned == 5


def test_f15_a_drifting_grid_that_bends_the_exponent_is_warned_about():
    """The grid's centre drifts from one side of the optimum to the other: 5 parabolas, no noise, a wrong exponent."""
    form = form_named("chinchilla")
    surface = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.1}
    columns = [], [], []
    for budget, offset in zip(np.geomspace(1e18, 1e21, 5), np.linspace(-0.8, 0.8, 5) * 2.0, strict=True):
        params = form.frontier(surface, budget).params * np.exp(offset + np.linspace(-2.2, 2.2, 9))
        loss = form.predict(surface, {"params": params, "tokens": budget / (6 * params)})
        for column, values in zip(columns, (np.full(9, budget), params, loss), strict=True):
            column.append(values)
    law = fit_slices(*(np.concatenate(column) for column in columns))
    truth = surface["beta"] / (surface["alpha"] + surface["beta"])
    assert law.exponent != pytest.approx(truth, rel=0.02)
    assert any("asymmetric slice" in warning for warning in law.warnings)


def test_a_slice_that_bends_down_has_no_optimum():
    form = form_named("isoflop")
    params = np.geomspace(1e7, 1e9, 7)
    loss = 3.0 - 0.02 * np.log(params / 1e8) ** 2
    result = fit(form, {"params": params}, loss)
    assert result.status is FitStatus.NOT_IDENTIFIABLE
    assert "curvature" in result.message
    assert result.standard_errors == {} and result.covariance is None
