"""The solver: invariances, statuses, standard errors, refusals; cases F01-F05, F08, F14."""

import numpy as np
import pytest
from scipy.optimize import curve_fit, minimize
from scipy.stats import t as student

from analysis.fit_result import FitInputError, FitResult, FitStatus
from analysis.forms.base import FORMS, form_named
from analysis.printed import printed_parameters
from analysis.residuals import LINEAR, residual_named
from analysis.solve import exponent_grid, fit
from attnres.errors import UserError

POWER, SATURATING, CHINCHILLA = (form_named(name) for name in ("power_law", "saturating", "chinchilla"))
COMPUTE = np.geomspace(3e17, 1e20, 7)
# A law whose asymptote the seven budgets can resolve at 0.2 % noise.
BENT = {"E": 0.7, "A": 3.0e4, "alpha": 0.25}


def bent(sd: float = 0.002, seed: int = 0, compute: np.ndarray = COMPUTE) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, sd, len(compute))
    return SATURATING.predict(BENT, {"compute": compute}) * np.exp(noise)


def surface(points: int = 60, sd: float = 0.003, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = {"params": np.exp(rng.uniform(17, 22, points)), "tokens": np.exp(rng.uniform(20, 25.5, points))}
    return x, CHINCHILLA.predict(CHINCHILLA.planted[0], x) * np.exp(rng.normal(0, sd, points))


# References


def test_the_power_law_is_log_log_regression():
    loss = bent()
    result = fit(POWER, {"compute": COMPUTE}, loss)
    slope, intercept = np.polyfit(np.log(COMPUTE), np.log(loss), 1)
    assert result.parameters["alpha"] == pytest.approx(-slope, rel=1e-10)
    assert np.log(result.parameters["A"]) == pytest.approx(intercept, rel=1e-10)
    _, covariance = np.polyfit(np.log(COMPUTE), np.log(loss), 1, cov=True)
    assert result.standard_errors["alpha"] == pytest.approx(np.sqrt(covariance[0, 0]), rel=1e-8)
    relative_a = result.standard_errors["A"] / result.parameters["A"]
    assert relative_a == pytest.approx(np.sqrt(covariance[1, 1]), rel=1e-8)


def test_linear_residuals_and_errors_equal_scipy_curve_fit():
    loss = bent()
    result = fit(SATURATING, {"compute": COMPUTE}, loss, residual=LINEAR)
    best, covariance = curve_fit(
        lambda c, e, a, k: e + a * (c / 1e19) ** -k, COMPUTE, loss, p0=[0.5, 0.5, 0.2], xtol=1e-14, ftol=1e-14
    )
    assert result.parameters["E"] == pytest.approx(best[0], rel=1e-6)
    assert result.parameters["alpha"] == pytest.approx(best[2], rel=1e-6)
    assert result.standard_errors["E"] == pytest.approx(np.sqrt(covariance[0, 0]), rel=1e-4)
    assert result.standard_errors["alpha"] == pytest.approx(np.sqrt(covariance[2, 2]), rel=1e-4)
    assert result.residual == "linear"
    with pytest.raises(UserError, match="unknown residual 'cubic'"):
        residual_named("cubic")


@pytest.mark.parametrize("delta", [1e-3, 1e-2])
def test_the_huber_objective_is_the_one_of_the_literature_and_not_above_a_general_optimiser(delta):
    x, loss = surface()

    def objective(p: np.ndarray) -> float:
        curve = (
            np.exp(p[0])
            + np.exp(p[1] - p[2] * np.log(x["params"]))
            + np.exp(p[3] - p[4] * np.log(x["tokens"]))
        )
        r = np.abs(np.log(loss) - np.log(curve))
        return float(np.where(r <= delta, r**2 / 2, delta * (r - delta / 2)).sum())

    result = fit(CHINCHILLA, x, loss, huber_delta=delta)
    p = result.parameters
    start = np.array([np.log(p["E"]), np.log(p["A"]), p["alpha"], np.log(p["B"]), p["beta"]])
    assert objective(start) == pytest.approx(result.objective, rel=1e-9)
    polished = minimize(
        objective, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-16, "maxiter": 4000}
    )
    assert result.objective <= polished.fun * (1 + 1e-9)


# Invariances


@pytest.mark.parametrize("factor", [1e-12, 1 / 8.64e19, 1e12])
def test_f04_units_of_compute_change_no_exponent(factor):
    loss = bent()
    for form in (POWER, SATURATING):
        one = fit(form, {"compute": COMPUTE}, loss)
        other = fit(form, {"compute": COMPUTE * factor}, loss)
        assert other.parameters["alpha"] == pytest.approx(one.parameters["alpha"], rel=1e-6)
        assert other.standard_errors["alpha"] == pytest.approx(one.standard_errors["alpha"], rel=1e-6)
        assert other.objective == pytest.approx(one.objective, rel=1e-6)
        at = COMPUTE[3]
        predicted = form.predict(other.parameters, {"compute": at * factor})
        assert predicted == pytest.approx(form.predict(one.parameters, {"compute": at}), rel=1e-9)


def test_units_of_loss_scale_the_coefficients_only():
    loss = bent()
    nats = fit(SATURATING, {"compute": COMPUTE}, loss)
    bits = fit(SATURATING, {"compute": COMPUTE}, loss / np.log(2))
    assert bits.parameters["alpha"] == pytest.approx(nats.parameters["alpha"], rel=1e-8)
    assert bits.parameters["E"] == pytest.approx(nats.parameters["E"] / np.log(2), rel=1e-8)


@pytest.mark.parametrize("factor", [1e-4, 1 / 240, 1e4])
@pytest.mark.parametrize("delta", [None, 1e-3])
def test_f01_the_scale_of_the_objective_changes_nothing(factor, delta):
    x, loss = surface()
    one = fit(CHINCHILLA, x, loss, huber_delta=delta)
    other = fit(CHINCHILLA, x, loss, huber_delta=delta, weights=np.full(60, factor))
    assert other.parameters == pytest.approx(one.parameters, rel=1e-6)
    assert other.standard_errors == pytest.approx(one.standard_errors, rel=1e-6)
    assert other.objective == pytest.approx(one.objective * factor, rel=1e-9)
    assert other.status is one.status is FitStatus.CONVERGED


def test_f01_a_known_law_is_recovered_within_its_interval_where_the_mean_objective_stops_early():
    x, loss = surface(points=240, sd=0.003, seed=3)
    truth = CHINCHILLA.planted[0]
    result = fit(CHINCHILLA, x, loss, huber_delta=1e-3)
    for name, value in truth.items():
        assert abs(result.parameters[name] - value) < 3.5 * result.standard_errors[name]

    def mean_objective(p: np.ndarray) -> float:
        curve = (
            np.exp(p[0])
            + np.exp(p[1] - p[2] * np.log(x["params"]))
            + np.exp(p[3] - p[4] * np.log(x["tokens"]))
        )
        r = np.abs(np.log(loss) - np.log(curve))
        return float(np.where(r <= 1e-3, r**2 / 2, 1e-3 * (r - 0.5e-3)).mean())

    peer = minimize(mean_objective, [0.0, 10.0, 0.5, 10.0, 0.5], method="L-BFGS-B")
    assert peer.success
    assert result.objective < 0.95 * mean_objective(peer.x) * 240


def test_rows_may_come_in_any_order():
    x, loss = surface()
    order = np.random.default_rng(7).permutation(60)
    one = fit(CHINCHILLA, x, loss, huber_delta=1e-3)
    other = fit(CHINCHILLA, {k: v[order] for k, v in x.items()}, loss[order], huber_delta=1e-3)
    assert other.parameters == pytest.approx(one.parameters, rel=1e-7)


@pytest.mark.parametrize("name", ["saturating", "chinchilla"])
@pytest.mark.parametrize("delta", [None, 1e-3])
def test_f08_five_disjoint_start_sets_agree(name, delta):
    form = form_named(name)
    x, loss = ({"compute": COMPUTE}, bent()) if name == "saturating" else surface()
    results = []
    for seed in range(5):
        starts = np.exp(
            np.random.default_rng(seed).uniform(np.log(0.02), np.log(1.5), (24, len(form.exponents)))
        )
        results.append(fit(form, x, loss, huber_delta=delta, exponent_starts=starts))
    for result in results:
        assert result.status is FitStatus.CONVERGED
        assert result.parameters == pytest.approx(results[0].parameters, rel=0.01)
        assert result.diagnostics["starts"] == 12 and result.diagnostics["starts_ranked"] == 24
        assert 0 < result.diagnostics["starts_at_best"] <= 1


def test_f08_the_default_grid_is_broad_and_its_share_is_reported():
    x, loss = surface()
    grid = exponent_grid(CHINCHILLA)
    assert len(grid) == 256
    assert grid.min() <= 0.02 and grid.max() >= 2.0
    result = fit(CHINCHILLA, x, loss)
    assert result.diagnostics["starts_ranked"] == 256
    assert result.diagnostics["starts_at_best"] > 0.5


def test_a_noisy_point_gets_less_weight():
    """Guards against sigma = 1 / std^2: the point with the large standard deviation must pull less."""
    loss = bent()
    off = loss.copy()
    off[-1] *= 1.05
    sigma = np.full(7, 0.002)
    vague = sigma.copy()
    vague[-1] = 0.2
    clean = fit(SATURATING, {"compute": COMPUTE}, loss, sigma=sigma).parameters["alpha"]
    trusted = fit(SATURATING, {"compute": COMPUTE}, off, sigma=sigma).parameters["alpha"]
    doubted = fit(SATURATING, {"compute": COMPUTE}, off, sigma=vague).parameters["alpha"]
    assert abs(doubted - clean) < 0.5 * abs(trusted - clean)


def test_weights_count_like_repeated_points():
    loss = bent()
    weights = np.array([3.0, 1, 2, 1, 1, 1, 0])
    weighted = fit(SATURATING, {"compute": COMPUTE}, loss, weights=weights)
    repeats = weights.astype(int)
    repeated = fit(SATURATING, {"compute": np.repeat(COMPUTE, repeats)}, np.repeat(loss, repeats))
    assert weighted.parameters == pytest.approx(repeated.parameters, rel=1e-8)


# Statuses


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (np.full(6, 1e18), "all points are at one compute"),
        (np.array([1e18, 1e19]), "2 points for 2 free parameters"),
        (np.array([1e18, 1e18, 1e19, 1e19]), ""),
    ],
    ids=["one budget", "two cells", "two budgets"],
)
def test_f05_not_identifiable_says_why_and_gives_no_errors(compute, reason):
    loss = 3.0 * (compute / 1e18) ** -0.05 * (1 + 0.001 * np.arange(len(compute)))
    form = POWER if reason else SATURATING
    result = fit(form, {"compute": compute}, loss)
    assert result.status is FitStatus.NOT_IDENTIFIABLE
    assert reason in result.message and result.message
    assert not result.usable
    assert result.covariance is None
    assert all(value is None for value in result.standard_errors.values())


def test_f05_a_covariance_that_depends_on_the_scale_of_x_cannot_appear():
    """N and D in fixed ratio: their terms cannot be told apart, whatever the unit."""
    params = np.geomspace(1e7, 1e9, 12)
    for factor in (1.0, 1e-9):
        x = {"params": params * factor, "tokens": 20 * params * factor}
        result = fit(
            CHINCHILLA,
            x,
            CHINCHILLA.predict(CHINCHILLA.planted[0], {"params": params, "tokens": 20 * params}),
        )
        assert result.status is FitStatus.NOT_IDENTIFIABLE
        assert "together" in result.message


def test_a_result_without_an_answer_cannot_carry_errors():
    good = fit(POWER, {"compute": COMPUTE}, bent())
    bad = good.model_dump() | {"status": "not_identifiable"}
    with pytest.raises(ValueError, match="carries no standard errors"):
        FitResult.model_validate(bad)


def test_a_curve_without_an_asymptote_hits_the_bound_at_zero():
    loss = POWER.predict({"A": 30.0, "alpha": 0.06}, {"compute": COMPUTE}) * np.exp(
        -0.002 * np.arange(7) ** 2
    )
    result = fit(SATURATING, {"compute": COMPUTE}, loss)
    assert result.status is FitStatus.BOUND_HIT
    assert result.parameters["E"] == 0.0
    assert result.standard_errors["E"] is None
    assert "E = 0" in result.message
    law = fit(POWER, {"compute": COMPUTE}, loss)
    assert result.parameters["alpha"] == pytest.approx(law.parameters["alpha"], rel=1e-6)
    assert result.standard_errors["alpha"] == pytest.approx(law.standard_errors["alpha"], rel=1e-6)


def test_a_loss_that_rises_with_compute_is_no_law():
    result = fit(POWER, {"compute": COMPUTE}, 2.0 * (COMPUTE / 1e18) ** 0.02)
    assert result.status is FitStatus.NOT_IDENTIFIABLE
    assert "exponent on its bound, alpha" in result.message
    assert result.covariance is None and result.standard_errors == {}


def test_equal_losses_are_no_law():
    for form in (POWER, SATURATING):
        result = fit(form, {"compute": COMPUTE}, np.full(7, 2.5))
        assert result.status is FitStatus.NOT_IDENTIFIABLE


def test_fixed_parameters_stay_and_give_the_constrained_fit():
    loss = bent()
    result = fit(SATURATING, {"compute": COMPUTE}, loss, fixed={"E": 0.5})
    assert result.parameters["E"] == 0.5
    assert result.standard_errors["E"] is None
    assert result.covariance[0] == [0.0, 0.0, 0.0]
    free = fit(SATURATING, {"compute": COMPUTE}, loss)
    assert result.objective > free.objective
    for name in ("A", "alpha"):
        held = fit(SATURATING, {"compute": COMPUTE}, loss, fixed={name: free.parameters[name]})
        assert held.parameters == pytest.approx(free.parameters, rel=1e-6)
    everything = fit(SATURATING, {"compute": COMPUTE}, loss, fixed=free.parameters)
    assert everything.objective == pytest.approx(free.objective, rel=1e-9)


def test_all_starts_reach_the_same_chinchilla_optimum_with_one_coefficient_fixed():
    x, loss = surface()
    free = fit(CHINCHILLA, x, loss)
    held = fit(CHINCHILLA, x, loss, fixed={"A": free.parameters["A"], "beta": free.parameters["beta"]})
    assert held.parameters == pytest.approx(free.parameters, rel=1e-5)


# Intervals


def covered(form, truth, x, sd, name, repeats, seed):
    rng = np.random.default_rng(seed)
    curve = form.predict(truth, x)
    hits = total = 0
    for _ in range(repeats):
        result = fit(form, x, curve * np.exp(rng.normal(0, sd, len(curve))))
        if result.standard_errors.get(name) is None:
            continue
        half = student.ppf(0.975, result.diagnostics["dof"]) * result.standard_errors[name]
        hits += abs(result.parameters[name] - truth[name]) < half
        total += 1
    return hits / total, total


@pytest.mark.parametrize(
    ("form", "truth", "points"),
    [(POWER, POWER.planted[0], 5), (SATURATING, BENT, 15)],
    ids=["power_law", "saturating"],
)
def test_f02_intervals_of_the_exponent_are_calibrated(form, truth, points):
    x = {"compute": np.geomspace(3e17, 1e20, points)}
    share, total = covered(form, truth, x, 0.003, "alpha", 200, seed=11)
    assert total == 200
    assert 0.90 <= share <= 0.99


@pytest.mark.parametrize("delta", [2e-4, 1e-3, 2e-2])
def test_f02_robust_intervals_are_calibrated_even_with_delta_far_below_the_noise(delta):
    """The formula of the textbooks covers about 70 % at the smallest delta."""
    rng = np.random.default_rng(21)
    compute = np.geomspace(3e17, 1e20, 60)
    curve = SATURATING.predict(BENT, {"compute": compute})
    hits = 0
    for _ in range(150):
        loss = curve * np.exp(rng.normal(0, 0.006, 60))
        result = fit(SATURATING, {"compute": compute}, loss, huber_delta=delta)
        hits += abs(result.parameters["alpha"] - BENT["alpha"]) < 2.0 * result.standard_errors["alpha"]
    assert 0.89 <= hits / 150 <= 0.99


def test_known_sigma_is_used_but_never_trusted_below_the_scatter():
    loss = bent(sd=0.004)
    free = fit(POWER, {"compute": COMPUTE}, loss)
    honest = fit(POWER, {"compute": COMPUTE}, loss, sigma=np.full(7, 10.0))
    boastful = fit(POWER, {"compute": COMPUTE}, loss, sigma=np.full(7, 1e-5))
    assert honest.standard_errors["alpha"] > free.standard_errors["alpha"]
    assert boastful.standard_errors["alpha"] == pytest.approx(free.standard_errors["alpha"], rel=1e-6)
    robust, vague = (
        fit(POWER, {"compute": COMPUTE}, loss, sigma=np.full(7, sd), huber_delta=1.0) for sd in (0.004, 10.0)
    )
    assert vague.standard_errors["alpha"] > 100 * robust.standard_errors["alpha"]


@pytest.mark.parametrize("name", FORMS.names())
def test_f03_printed_digits_reproduce_the_curve(name):
    form = form_named(name)
    rng = np.random.default_rng(2)
    ranges = {
        "compute": (1e17, 1e20),
        "params": (3e7, 3e9),
        "tokens": (1e9, 1e11),
        "tokens_per_param": (5, 500),
    }
    x = {v: np.exp(rng.uniform(*np.log(ranges[v]), 30)) for v in form.variables}
    loss = form.predict(form.planted[0], x) * np.exp(rng.normal(0, 0.003, 30))
    result = fit(form, x, loss)
    printed = {key: float(text) for key, text in printed_parameters(form, result).items()}
    moved = np.log(form.predict(printed, x)) - np.log(form.predict(result.parameters, x))
    assert np.abs(moved).max() < 0.1 * result.diagnostics["residual_sd"]
    assert any(printed[key] != result.parameters[key] for key in printed)


def test_f14_one_corrupted_cell_moves_the_robust_exponent_by_less_than_its_interval():
    compute = np.repeat(np.geomspace(3e17, 1e20, 7), 3)
    noise = np.random.default_rng(4).normal(0, 0.002, 21)
    loss = SATURATING.predict(BENT, {"compute": compute}) * np.exp(noise)
    for cell in range(21):
        spoiled = loss.copy()
        spoiled[cell] += 0.1
        clean = fit(SATURATING, {"compute": compute}, loss, huber_delta=0.003)
        robust = fit(SATURATING, {"compute": compute}, spoiled, huber_delta=0.003)
        half = student.ppf(0.975, 18) * robust.standard_errors["alpha"]
        assert abs(robust.parameters["alpha"] - clean.parameters["alpha"]) < half


# Refusals


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"loss": []}, "loss is empty"),
        ({"loss": [1.0, 2.0]}, r"compute has 7 values, loss has 2"),
        ({"loss": [3.0] * 6 + [float("nan")]}, r"loss is nan at point 6 \(spec_id id6\)"),
        ({"loss": [3.0] * 6 + [float("inf")]}, "loss is inf at point 6"),
        ({"loss": [-3.0] + [3.0] * 6}, "loss is -3.0 at point 0"),
        ({"loss": ["three"] * 7}, "loss does not hold numbers"),
        ({"loss": np.ones((7, 2))}, "loss has 2 dimensions"),
        ({"compute": np.zeros(7)}, "compute is 0.0 at point 0"),
        ({"weights": np.zeros(7)}, "weights are all zero"),
        ({"weights": -np.ones(7)}, "weights is -1.0 at point 0"),
        ({"sigma": np.zeros(7)}, "sigma is 0.0 at point 0"),
        ({"sigma": np.ones(3)}, "sigma has 3 values"),
        ({"huber_delta": 0.0}, "huber_delta is 0.0"),
        ({"fixed": {"gamma": 1.0}}, "has no parameter gamma"),
        ({"fixed": {"E": -1.0}}, "fixed E is -1.0"),
        ({"fixed": {"alpha": float("nan")}}, "fixed alpha is nan"),
        ({"spec_ids": ["a"]}, "spec_ids has 1 entries"),
        ({"exponent_starts": [[0.1, 0.2]]}, "exponent_starts has shape"),
        ({"exponent_starts": [[-0.1]]}, "exponent_starts holds a value"),
    ],
)  # fmt: skip
def test_wrong_input_is_named(change, named):
    options = {"spec_ids": [f"id{i}" for i in range(7)]} | change
    compute = options.pop("compute", COMPUTE)
    loss = options.pop("loss", bent())
    if len(loss) != 7 and "spec_ids" not in change:
        options["spec_ids"] = []
    with pytest.raises(FitInputError, match=named) as caught:
        fit(SATURATING, {"compute": compute}, loss, **options)
    assert "\n" not in str(caught.value)


def test_a_missing_variable_is_named():
    with pytest.raises(FitInputError, match="missing tokens"):
        fit(CHINCHILLA, {"params": COMPUTE}, bent())
