"""fits/: laws of every arm, the held-out budget, the checklist, sensitivity, model comparison, error budget."""

import json
import math

import numpy as np
import pytest

from analysis.arm_points import points_of
from analysis.comparison import Comparison
from analysis.counts import count_runs
from analysis.fits import holdout, write_fits
from analysis.model_comparison import compare_models, paired_slope_test
from analysis.sensitivity import IRREDUCIBLE_SHARES, write_sensitivity
from analysis.study import Study, fit_name
from tests.analysis.studies import BASELINE, VARIANT, arms_of, ask, made_study
from tests.analysis.test_pair_slope import PARAMS, PUBLISHED, TOKENS, published_arms


@pytest.fixture
def fitted(tmp_path) -> Study:
    study = made_study(tmp_path, sizes=6, noise=5e-4, lack_of_fit=5e-4)
    write_fits(study)
    write_sensitivity(Comparison(study))
    return study


def test_each_arm_has_its_law(fitted):
    for arm, shift in ((BASELINE, 1.0), (VARIANT, 1.25)):
        law = fitted.read_fits(fit_name("power_law", arm))
        assert law["group"] == arm
        assert law["parameters"]["alpha"] == pytest.approx(0.057, abs=0.003)
        middle = 1e12 * math.sqrt(30)
        predicted = law["parameters"]["A"] * middle ** -law["parameters"]["alpha"]
        assert predicted == pytest.approx(2.0 * shift**-0.057, abs=0.003)


def test_two_arms_never_share_a_file(fitted):
    assert fit_name("power_law", "a[b=1]") == "power_law--a_b_1"
    names = {path.name for path in (fitted.folder / "fits").glob("power_law--*.json")}
    assert len(names) == 2


def test_s18_the_largest_budget_is_predicted_from_the_others_in_each_arm(fitted):
    rows = [row for row in fitted.read_fits("holdout") if row["form"] == "power_law"]
    assert [row["variant"] for row in rows] == [BASELINE, VARIANT]
    for row in rows:
        assert row["size"] == "d7w224"
        assert not set(row["spec_ids"]) & set(row["fitted_on"])
        assert row["lo"] < row["predicted"] < row["hi"]
        assert row["measured"] == pytest.approx(row["predicted"], abs=0.01)
        assert row["inside"] == (row["lo"] <= row["measured"] <= row["hi"])


def test_s18_the_prediction_interval_is_calibrated(tmp_path):
    """Sixty studies: 95 % +- 2.8 % (one standard error)."""
    inside = []
    for seed in range(60):
        study = made_study(tmp_path / str(seed), sizes=7, lack_of_fit=0.004, seed=seed, seeds=1)
        inside += [r["inside"] for r in holdout(points_of(study.cells, BASELINE)) if r["form"] == "power_law"]
    assert len(inside) == 60
    assert np.mean(inside) >= 0.85


CHECKLIST = (
    *("forms", "N", "D", "C", "loss", "checkpoints used", "points used", "objective", "optimiser", "arms"),
    *(
        "starts that reach the best",
        "interval level",
        "compute range",
        "learning rates",
        "data set",
        "schedule",
    ),
)


def test_f17_the_checklist_has_a_value_for_each_item(fitted):
    items = {row["item"]: row["value"] for row in fitted.read_fits("checklist")}
    for item in CHECKLIST:
        assert items[item] not in (None, "", [], {})


def test_f17_a_cell_left_out_leaves_the_points_used(tmp_path):
    study = made_study(tmp_path)
    write_fits(study)
    before = {row["item"]: row["value"] for row in study.read_fits("checklist")}["points used"]
    gone = before[VARIANT][0]
    again = Study(tmp_path)
    again.runs.loc[again.runs["spec_id"] == gone, "excluded"] = True
    write_fits(again)
    after = {row["item"]: row["value"] for row in again.read_fits("checklist")}["points used"]
    assert before[VARIANT] == [gone, *after[VARIANT]]
    assert before[BASELINE] == after[BASELINE]


def test_f13_the_rules_for_the_irreducible_loss_stand_side_by_side(fitted):
    rows = [row for row in fitted.read_fits("sensitivity") if row["kind"] == "irreducible"]
    values = [row["value"] for row in rows]
    assert values[:2] == ["free in each arm", "shared"]
    assert len([v for v in values if v.startswith("fixed: ")]) == len(IRREDUCIBLE_SHARES)
    fixed = [row["compute_multiplier"] for row in rows if row["value"].startswith("fixed: ")]
    assert len(set(fixed)) == len(fixed)


def test_f13_rules_that_disagree_are_called_out(tmp_path):
    """An arm that gains a constant instead of a factor: with E free in each arm the gain is read as its E."""
    study = made_study(tmp_path, sizes=7, irreducible=1.2, exponent=0.25, noise=1e-4, lack_of_fit=0.0)
    at = study.runs["variant"] == VARIANT
    base = study.runs.loc[study.runs["variant"] == BASELINE].set_index(["depth", "seed"])["val_loss"]
    keys = list(zip(study.runs.loc[at, "depth"], study.runs.loc[at, "seed"], strict=True))
    wiggle = np.linspace(0, 1e-4, at.sum()) ** 1.0
    study.runs.loc[at, "val_loss"] = base.loc[keys].to_numpy() - 0.05 + wiggle
    write_sensitivity(Comparison(study))
    rows = {row["value"]: row for row in study.read_fits("sensitivity") if row["kind"] == "irreducible"}
    assert "disagree" in rows["disagreement"]["status"]


def test_leaving_out_and_rounding_are_reported(fitted):
    rows = fitted.read_fits("sensitivity")
    kinds = [row["kind"] for row in rows]
    assert kinds.count("leave_one_size_out") == 6
    for kind in ("leave_largest_budget_out", "corrupted_cell"):
        assert kinds.count(kind) == 1
    corrupted = next(row for row in rows if row["kind"] == "corrupted_cell")
    assert abs(math.log(corrupted["compute_multiplier"] / 1.25)) > 0.01
    rounded = next(row for row in rows if row["value"] == "3 decimals")
    assert rounded["compute_multiplier"] == pytest.approx(1.25, abs=0.02)


@pytest.mark.parametrize(("variant", "p"), [("block", 0.16), ("full", 0.58), ("mhc", 0.99)])
def test_paired_slope_test_on_the_published_table(variant, p):
    x = np.log(6 * PARAMS * TOKENS)
    ratio = np.log(PUBLISHED["baseline"] / PUBLISHED[variant])
    assert round(paired_slope_test(x, ratio, np.ones(5)), 2) == p


def test_models_are_told_apart():
    x = np.linspace(-1.7, 1.7, 10)
    rng = np.random.default_rng(0)
    b = 1.8 * np.exp(-0.057 * x)

    def preferred(tilt: float) -> dict[str, dict]:
        v = 1.8 * np.exp(-0.057 * (x + 0.22 + tilt * x)) + rng.normal(0, 3e-4, 10)
        return {row["model"]: row for row in compare_models(arms_of(x, x, b, v))}

    same, tilted = preferred(0.0), preferred(0.1)
    assert same["M1"]["preferred"] and not same["M2"]["preferred"]
    assert tilted["M2"]["preferred"] and tilted["M2"]["p"] < 0.001
    assert tilted["M2"]["aicc"] < tilted["M1"]["aicc"]
    assert same["M0"]["p"] < 1e-6
    assert {row["test"] for row in same.values()} >= {"t-test of m = 1 on the rungs' paired values"}


def test_slope_test_rejects_a_shared_exponent_in_five_percent():
    rng = np.random.default_rng(1)
    x = np.linspace(0, 3, 6)
    p = [paired_slope_test(x, 0.01 + rng.normal(0, 1e-3, 6), np.ones(6)) for _ in range(1000)]
    assert 0.03 < np.mean(np.array(p) < 0.05) < 0.07


def test_models_of_a_refused_comparison_are_one_row():
    arms = published_arms("block")
    x = np.log(arms.compute_baseline / 1e13)[:3]
    rows = compare_models(arms_of(x, x, arms.loss_baseline[:3], arms.loss_variant[:3]))
    assert [row["status"][:24] for row in rows] == ["refused: too few sizes: "]


def test_error_budget_names_every_source(fitted):
    rows = {row["source"]: row for row in fitted.read_fits("error_budget")}
    assert set(rows) == {
        *("pairs", "seeds", "slope", "irreducible loss", "FLOP convention", "rounding", "learning rate")
    }
    headline = ask(fitted).estimate
    inside = math.hypot(rows["pairs"]["sd_ln_m"], rows["slope"]["sd_ln_m"])
    assert inside == pytest.approx(headline.sd, rel=1e-9)
    assert rows["learning rate"]["sd_ln_m"] is None
    assert 0 < rows["seeds"]["sd_ln_m"] < 3 * rows["pairs"]["sd_ln_m"]


def test_pairs_average_to_the_headline(fitted):
    rows = fitted.read_fits("pairs")
    weights = np.array([row["n_seeds"] for row in rows], float)
    logs = np.log([row["compute_multiplier"] for row in rows])
    assert np.average(logs, weights=weights) == pytest.approx(ask(fitted).estimate.ln_m, rel=1e-9)


def test_files_are_plain_json_without_nan(fitted):
    for path in (fitted.folder / "fits").glob("*.json"):
        assert "NaN" not in path.read_text()
        json.loads(path.read_text())


def test_s02_both_conventions_of_n_are_axes(tmp_path):
    study = made_study(tmp_path)
    without, with_embeddings = ask(study, axis="6nd"), ask(study, axis="6nd_total")
    assert without.arms.compute_baseline[0] < with_embeddings.arms.compute_baseline[0]
    assert without.estimate.ln_m != with_embeddings.estimate.ln_m
    row = study.cells.iloc[0]
    assert (
        without.arms.compute_baseline[0] == 6 * (row["params_decoder"] + row["params_stream"]) * row["tokens"]
    )


def test_s08_continued_runs_are_noted(tmp_path):
    study = made_study(tmp_path)
    study.runs.loc[3, "parent_id"] = "aaaaaaaaaaaa"
    assert any("1 runs continue another run" in note for note in count_runs(study)["notes"])


def test_s13_passes_over_the_data_are_counted(tmp_path):
    study = made_study(tmp_path)
    study.runs.loc[0, "data_passes"] = 3.0
    notes = count_runs(study)["notes"]
    assert any("1 runs pass the data more than once (up to 3 times, d2w64)" in note for note in notes)


def test_s12_mixed_validation_sets_are_noted_and_refused(tmp_path):
    study = made_study(tmp_path)
    study.runs.loc[study.runs["variant"] == VARIANT, "val_tokens"] = 999
    assert any("validation sets of 999, 131072 tokens are mixed" in n for n in count_runs(study)["notes"])
    assert "val_tokens differs" in ask(study).row()["status"]


def test_s11_every_rung_of_the_headline_names_finished_runs(fitted):
    finished = set(fitted.runs.loc[fitted.runs["status"] == "finished", "spec_id"])
    rows = fitted.read_fits("pairs")
    for row in rows:
        assert len(row["spec_ids"]) == 2 * row["n_seeds"]
        assert set(row["spec_ids"]) <= finished
        losses = fitted.runs.set_index("spec_id").loc[row["spec_ids"], "val_loss"].to_numpy(float)
        assert losses[::2].mean() == pytest.approx(row["loss_baseline"], rel=1e-12)
        assert losses[1::2].mean() == pytest.approx(row["loss_variant"], rel=1e-12)
