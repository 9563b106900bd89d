"""Published fits, redone from the published data where ../shared/data is present (else skipped with the reason)."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

from analysis.bootstrap import fit_with_bootstrap
from analysis.fit_result import FitStatus
from analysis.forms.base import form_named
from analysis.published import attnres_scaling as paper
from analysis.residuals import LINEAR
from analysis.solve import fit

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"published data sets not found at {DATA}")

CHINCHILLA, SATURATING, POWER, OVERTRAINING = (
    form_named(name) for name in ("chinchilla", "saturating", "power_law", "overtraining")
)
# Hoffmann et al., arXiv 2203.15556, appendix D.3: ln A, ln B, ln E, alpha, beta.
HOFFMANN = np.array([np.log(406.4), np.log(410.7), np.log(1.69), 0.34, 0.28])


def besiroglu() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """240 points read off Hoffmann's figure (Besiroglu et al., arXiv 2404.10102), the 5 highest losses left out."""
    table = pd.read_csv(DATA / "chinchilla_svg_besiroglu2024.csv").sort_values("loss").iloc[:-5]
    params = table["Model Size"].to_numpy(float)
    tokens = table["Training FLOP"].to_numpy(float) / (6 * params)
    return {"params": params, "tokens": tokens}, table["loss"].to_numpy(float)


def test_besiroglu_refit_reaches_the_optimum():
    x, loss = besiroglu()
    assert len(loss) == 240
    result = fit(CHINCHILLA, x, loss, huber_delta=1e-3)
    assert result.status is FitStatus.CONVERGED
    assert result.objective == pytest.approx(1.018274e-3, abs=5e-10)
    expected = {"E": (1.8172, 5e-5), "A": (477.8, 0.05), "B": (2143.4, 0.05), "alpha": (0.3473, 5e-5)}
    for name, (value, tolerance) in expected.items():
        assert result.parameters[name] == pytest.approx(value, abs=tolerance)
    assert result.parameters["beta"] == pytest.approx(0.3672, abs=5e-5)
    published = CHINCHILLA.predict(
        {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}, x
    )
    residual = np.abs(np.log(loss) - np.log(published))
    looser = np.where(residual <= 1e-3, residual**2 / 2, 1e-3 * (residual - 5e-4)).sum()
    assert result.objective < looser
    assert result.diagnostics["starts_at_best"] > 0.8


def test_besiroglu_bootstrap_standard_errors():
    x, loss = besiroglu()
    summary = fit_with_bootstrap(CHINCHILLA, x, loss, huber_delta=1e-3, n=4000, seed=0).bootstrap
    assert summary.failed == 0 and not summary.withdrawn
    # The standard error of a standard error from 4000 resamples is about 1-2 %.
    for name, value in {"E": 0.0252, "alpha": 0.0148, "beta": 0.0202}.items():
        assert summary.standard_errors[name] == pytest.approx(value, rel=0.05)


def test_the_mean_objective_stops_lbfgs_where_it_starts_but_not_us():
    """The error behind the published law: mean instead of sum, and tolerances that are absolute."""
    x, loss = besiroglu()

    def mean_objective(p: np.ndarray) -> float:
        curve = (
            np.exp(p[2])
            + np.exp(p[0] - p[3] * np.log(x["params"]))
            + np.exp(p[1] - p[4] * np.log(x["tokens"]))
        )
        residual = np.abs(np.log(loss) - np.log(curve))
        return float(np.where(residual <= 1e-3, residual**2 / 2, 1e-3 * (residual - 5e-4)).mean())

    peer = minimize(mean_objective, HOFFMANN, method="L-BFGS-B")
    assert peer.success
    # It reports success within 0.006 of its start; the optimum is 0.09 away in beta, 14 % lower.
    np.testing.assert_allclose(peer.x, HOFFMANN, rtol=0, atol=6e-3)
    assert peer.fun * 240 > 1.1 * 1.018274e-3
    ours = fit(
        CHINCHILLA, x, loss, huber_delta=1e-3, weights=np.full(240, 1 / 240), exponent_starts=[HOFFMANN[3:]]
    )
    assert ours.objective * 240 == pytest.approx(1.018274e-3, rel=1e-6)
    assert ours.parameters["beta"] == pytest.approx(0.3672, abs=5e-5)


@pytest.mark.parametrize(
    ("subset", "delta", "objective"),
    [
        ("cool_end", 1e-3, 1.9640864e-3),
        ("hot", 1e-3, 1.9816128e-3),
        ("slim_chinchilla", 1e-3, 1.204360e-4),
        ("cool_end", 1e-4, 2.047791e-4),
        ("hot", 1e-4, 2.075052e-4),
        ("slim_chinchilla", 1e-4, 1.30364e-5),
    ],
)
def test_gemstones_objectives_are_reached(subset, delta, objective):
    table = pd.read_csv(DATA / "gemstones_fitting.csv")
    table = table[table["subset"] == subset]
    x = {"params": table["params_active_precise"].to_numpy(float), "tokens": table["tokens"].to_numpy(float)}
    result = fit(CHINCHILLA, x, table["final_loss"].to_numpy(float), huber_delta=delta)
    assert result.status is FitStatus.CONVERGED
    last_digit = 10.0 ** (np.floor(np.log10(objective)) - 6)
    assert result.objective <= objective + last_digit


def gadre(dataset: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The five points a law is fitted to (four sizes at multiplier 1, d96 at 16), and all rows of the data set."""
    table = pd.read_csv(DATA / "gadre_scaling_104models.csv")
    table = table[table["dataset"] == dataset]
    small = table["model"].str.startswith("d=")
    fitted = (small & (table["chinchilla_multiplier"] == 1)) | (
        table["model"].str.startswith("d=96_") & (table["chinchilla_multiplier"] == 16)
    )
    return table[fitted], table


def gadre_inputs(table: pd.DataFrame) -> dict[str, np.ndarray]:
    # int64 would overflow in 6 N D of the 7B model.
    params, tokens = table["params"].to_numpy(float), table["tokens"].to_numpy(float)
    return {"compute": 6 * params * tokens, "tokens_per_param": tokens / params}


@pytest.mark.parametrize(
    ("dataset", "irreducible", "eta"),
    [("c4_original", 1.508, 0.1212), ("rpj", 1.837, 0.1364), ("rw_original", 1.734, 0.1272)],
)
def test_gadre_laws(dataset, irreducible, eta):
    """Their fit is least squares on the loss itself."""
    fitted, _ = gadre(dataset)
    assert len(fitted) == 5
    result = fit(OVERTRAINING, gadre_inputs(fitted), fitted["loss_c4_val"], residual=LINEAR)
    assert result.parameters["E"] == pytest.approx(irreducible, abs=5e-4)
    assert result.parameters["eta"] == pytest.approx(eta, abs=5e-5)


@pytest.mark.parametrize(
    ("model", "multiplier", "error"), [("open_lm_1b", 32, 0.7103), ("open_lm_7b", 1, 0.7320)]
)
def test_gadre_held_out_runs_are_predicted(model, multiplier, error):
    fitted, table = gadre("rpj")
    result = fit(OVERTRAINING, gadre_inputs(fitted), fitted["loss_c4_val"], residual=LINEAR)
    held_out = table[(table["model"] == model) & (table["chinchilla_multiplier"] == multiplier)]
    assert len(held_out) == 1
    predicted = OVERTRAINING.predict(result.parameters, gadre_inputs(held_out))
    relative = abs(predicted[0] / held_out["loss_c4_val"].iloc[0] - 1)
    assert 100 * relative == pytest.approx(error, abs=5e-5)


def marin(points: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    table = pd.read_csv(DATA / "marin_moe_4447_9290.csv").query("issue == 4447").iloc[:points]
    return {"compute": table["budget_flops"].to_numpy(float)}, table["paloma_macro_loss"].to_numpy(float)


def test_marin_with_a_pinned_asymptote():
    """Their pinned law is a line through ln(loss - 1.6): a power law of the excess."""
    for points, coefficient, alpha, predicted in ((6, 95.2, 0.0941, 2.606), (7, 97.8, 0.0947, 2.602)):
        x, loss = marin(points)
        result = fit(POWER, x, loss - 1.6)
        assert result.parameters["A"] == pytest.approx(coefficient, abs=0.06)
        assert result.parameters["alpha"] == pytest.approx(alpha, abs=5e-5)
        at = 1.6 + POWER.predict(result.parameters, {"compute": 1e21})
        assert at == pytest.approx(predicted, abs=1e-3)
        # Residuals on ln loss instead: another weighting of the same points, the same prediction.
        ours = fit(SATURATING, x, loss, fixed={"E": 1.6})
        assert SATURATING.predict(ours.parameters, {"compute": 1e21}) == pytest.approx(predicted, abs=1.5e-3)


def test_marin_with_a_free_asymptote():
    x, loss = marin(6)
    result = fit(SATURATING, x, loss, residual=LINEAR)
    assert result.parameters["E"] == pytest.approx(1.438, abs=5e-4)
    assert result.standard_errors["E"] == pytest.approx(0.054, abs=5e-4)
    assert result.parameters["alpha"] == pytest.approx(0.0847, abs=5e-5)
    assert SATURATING.predict(result.parameters, {"compute": 1e21}) == pytest.approx(2.5992, abs=5e-5)
    assert abs(2.5992 - marin(7)[1][-1]) < 1e-3


def test_table_2_in_the_project_equals_the_published_file():
    table = pd.read_csv(DATA / "attnres_table2_kimi2026.csv")
    assert len(table) == len(paper.TABLE_2)
    columns = {
        "params_active_nonemb": "params_active", "tokens": "tokens", "blocks": "depth", "heads": "num_heads",
        "d_model": "width", "d_ff": "mlp_width", "lr": "lr", "batch_size_seqs": "batch_sequences", "context": "seq_len",
    }  # fmt: skip
    for row, cell in zip(table.to_dict("records"), paper.TABLE_2, strict=True):
        for column, field in columns.items():
            assert row[column] == getattr(cell, field)
        for arm in (paper.BASELINE, *paper.VARIANTS):
            assert row[f"loss_{arm}"] == cell.loss[arm]


def test_the_speed_is_of_the_promised_order():
    """The bars themselves are in the benchmark, where the machine is quiet; here five times as much is allowed."""
    x, loss = besiroglu()
    fit(CHINCHILLA, x, loss, huber_delta=1e-3)
    start = time.process_time()
    fit(CHINCHILLA, x, loss, huber_delta=1e-3)
    assert time.process_time() - start < 0.5
