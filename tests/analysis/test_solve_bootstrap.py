"""The batched bootstrap: weights equal resampled arrays, seeded, failures counted; case F09."""

import numpy as np
import pytest

from analysis.bootstrap import MAX_FAILED_SHARE, fit_with_bootstrap, refit, resampling_weights, summarise
from analysis.fit_result import FitInputError, FitResult
from analysis.forms.base import form_named
from analysis.solve import fit

POWER, SATURATING, CHINCHILLA = (form_named(name) for name in ("power_law", "saturating", "chinchilla"))
BENT = {"E": 0.7, "A": 3.0e4, "alpha": 0.25}


def bent(points: int = 20, sd: float = 0.003, seed: int = 0):
    compute = np.geomspace(3e17, 1e20, points)
    noise = np.random.default_rng(seed).normal(0, sd, points)
    return {"compute": compute}, SATURATING.predict(BENT, {"compute": compute}) * np.exp(noise)


def surface(points: int = 80, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = {"params": np.exp(rng.uniform(17, 22, points)), "tokens": np.exp(rng.uniform(20, 25.5, points))}
    return x, CHINCHILLA.predict(CHINCHILLA.planted[0], x) * np.exp(rng.normal(0, 0.01, points))


@pytest.mark.parametrize("delta", [None, 1e-3])
def test_a_weighted_refit_equals_a_fit_of_the_resampled_arrays(delta):
    x, loss = surface()
    result = fit(CHINCHILLA, x, loss, huber_delta=delta)
    weights = resampling_weights(range(80), 12, seed=3)
    refits = refit(CHINCHILLA, x, loss, weights, result)
    assert refits.valid.all()
    for counts, row in zip(weights.astype(int), refits.parameters, strict=True):
        drawn = np.repeat(np.arange(80), counts)
        alone = fit(CHINCHILLA, {k: v[drawn] for k, v in x.items()}, loss[drawn], huber_delta=delta)
        assert alone.parameters == pytest.approx(dict(zip(CHINCHILLA.parameters, row, strict=True)), rel=1e-3)


def test_the_spread_agrees_with_the_standard_errors_of_the_fit():
    x, loss = bent(points=60)
    result = fit_with_bootstrap(SATURATING, x, loss, n=2000, seed=1)
    for name in SATURATING.parameters:
        assert result.bootstrap.standard_errors[name] == pytest.approx(result.standard_errors[name], rel=0.35)
        inside = result.bootstrap.percentiles[name]
        assert inside["2.5"] < inside["16"] < inside["50"] < inside["84"] < inside["97.5"]
    assert FitResult.model_validate_json(result.model_dump_json()) == result


def test_the_seed_decides_everything():
    x, loss = bent()
    one, same, other = (
        fit_with_bootstrap(SATURATING, x, loss, n=200, seed=seed).bootstrap for seed in (5, 5, 6)
    )
    assert one == same
    assert one.percentiles != other.percentiles


def test_the_batch_size_changes_no_refit():
    x, loss = surface()
    result = fit(CHINCHILLA, x, loss, huber_delta=1e-3)
    weights = resampling_weights(range(80), 300, seed=3)
    together = refit(CHINCHILLA, x, loss, weights, result).parameters
    alone = np.concatenate([refit(CHINCHILLA, x, loss, row[None], result).parameters for row in weights[:20]])
    spread = together.std(axis=0)
    assert (np.abs(together[:20] - alone) / spread).max() < 1e-3


def test_units_are_drawn_together():
    units = ["a", "a", "b", "c", "c", "c"]
    weights = resampling_weights(units, 500, seed=0)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 3] == weights[:, 4]).all() and (weights[:, 4] == weights[:, 5]).all()
    drawn = weights[:, [0, 2, 3]].sum(axis=1)
    assert (drawn == 3).all()
    np.testing.assert_allclose(weights.mean(axis=0), 1.0, atol=0.1)


def test_weights_of_points_multiply_the_counts():
    x, loss = bent()
    weights = np.random.default_rng(0).uniform(0.5, 2, 20)
    result = fit_with_bootstrap(SATURATING, x, loss, n=50, seed=2, weights=weights)
    counts = resampling_weights(range(20), 50, 2)
    by_hand = summarise(SATURATING, refit(SATURATING, x, loss, counts * weights, result), 2)
    assert result.bootstrap == by_hand


def test_f09_failed_refits_are_counted_and_withdraw_the_interval():
    """Five cells, three parameters: about one resample in ten has fewer than three different cells."""
    x, loss = bent(points=5, sd=0.001)
    result = fit_with_bootstrap(SATURATING, x, loss, n=1000, seed=0)
    summary = result.bootstrap
    expected = (5 + 10 * 30) / 5**5
    assert summary.failed >= 1000 * (expected - 0.03)
    assert summary.failed > MAX_FAILED_SHARE * 1000
    assert summary.withdrawn
    assert summary.standard_errors == {} and summary.percentiles == {}
    assert f"{summary.failed} of 1000 refits failed" in summary.message
    assert "withdrawn" in summary.message


def test_f09_a_few_failures_are_reported_without_withdrawing():
    x, loss = bent(points=5, sd=0.001)
    result = fit_with_bootstrap(POWER, x, loss, n=2000, seed=0)
    summary = result.bootstrap
    lonely = int((resampling_weights(range(5), 2000, 0).max(axis=1) == 5).sum())
    assert summary.failed == lonely > 0
    assert not summary.withdrawn
    assert summary.standard_errors["alpha"] > 0
    assert f"{lonely} of 2000 refits failed" in summary.message


def test_refits_at_the_bound_of_e_are_valid_and_counted():
    compute = np.geomspace(3e17, 1e20, 12)
    noise = np.random.default_rng(1).normal(0, 0.02, 12)
    loss = SATURATING.predict({"E": 0.2, "A": 60.0, "alpha": 0.08}, {"compute": compute}) * np.exp(noise)
    result = fit_with_bootstrap(SATURATING, {"compute": compute}, loss, n=300, seed=0)
    assert result.bootstrap.at_bound > 30


def test_no_bootstrap_without_an_answer():
    result = fit_with_bootstrap(POWER, {"compute": np.full(5, 1e18)}, np.full(5, 2.0))
    assert not result.usable and result.bootstrap is None
    with pytest.raises(FitInputError, match="cannot refit from a fit that is not_identifiable"):
        refit(POWER, {"compute": np.full(5, 1e18)}, np.full(5, 2.0), np.ones((3, 5)), result)


@pytest.mark.parametrize(
    ("weights", "named"),
    [(np.ones(20), "shape"), (np.ones((3, 4)), "shape"), (-np.ones((3, 20)), "negative"), (np.full((3, 20), np.nan), "finite")],
)  # fmt: skip
def test_wrong_weights_are_named(weights, named):
    x, loss = bent()
    with pytest.raises(FitInputError, match=named):
        refit(SATURATING, x, loss, weights, fit(SATURATING, x, loss))


def test_wrong_units_and_counts_are_named():
    x, loss = bent()
    with pytest.raises(FitInputError, match="units has 3 labels"):
        fit_with_bootstrap(SATURATING, x, loss, units=["a", "b", "c"])
    with pytest.raises(FitInputError, match="0 resamples"):
        resampling_weights(range(4), 0, 0)
