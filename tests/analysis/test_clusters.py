"""Branches of one trunk are one: what every interval makes of runs that share their noise."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.linalg import sqrtm

from analysis.arm_points import points_of
from analysis.clusters import cluster_covariance, collapse, linked
from analysis.comparison import Comparison, write_multipliers
from analysis.counts import count_runs
from analysis.error_budget import _seed_sd
from analysis.fits import fit_arm, write_fits
from analysis.forms.base import form_named
from analysis.model_comparison import compare_models, paired_slope_test
from analysis.multipliers.base import LEVEL, RefusalError
from analysis.multipliers.clustered import rungs_where
from analysis.multipliers.fitted_curve import fitted_curve
from analysis.multipliers.pair_arrays import estimate_pair_slope
from analysis.multipliers.pair_slope import inputs_of, pair_slope
from analysis.noise import measure_noise
from analysis.notes import write_notes
from analysis.outlook import outlook
from analysis.pair_bootstrap import bootstrap_pairs
from analysis.report import write_report
from analysis.sensitivity import write_sensitivity
from analysis.simulation import Design, coverage, simulate
from analysis.study import Study
from tests.analysis.planted import planted, write_study
from tests.analysis.studies import BASELINE, VARIANT, ask, made_study

BRANCHED = {"branches": 3, "trunk_noise": 0.003, "noise": 0.001, "seeds": 1}


def blanked(arms):
    """The same pairs as if every run had been trained alone."""
    return dataclasses.replace(arms, pair_trunks=())


def test_items_are_linked_through_any_trunk_they_share():
    assert linked([["a", "b"], ["c"], ["b", "d"], [""], ["", ""], ["d"]]).tolist() == [0, 1, 0, 2, 3, 0]
    assert linked([["a"], ["b"], ["c"], ["a", "c"]]).tolist() == [0, 1, 0, 0]
    assert linked([]).tolist() == []


def test_rungs_that_stand_alone_are_left_as_they_are_to_the_last_bit():
    rng = np.random.default_rng(0)
    weight, values = rng.random((3, 5)), rng.random((3, 5))
    same = collapse(np.arange(5), weight, values)
    assert same[0] is weight and same[1] is values
    weights, means = collapse(np.array([0, 1, 0, 1, 1]), weight, values)
    assert weights[:, 0] == pytest.approx(weight[:, 0] + weight[:, 2])
    assert means[:, 1] == pytest.approx(
        (weight[:, [1, 3, 4]] * values[:, [1, 3, 4]]).sum(1) / weight[:, [1, 3, 4]].sum(1)
    )


def test_degrees_of_freedom_are_those_of_clusters():
    """Balanced clusters and a contrast between them: the two-sample and the regression case, by hand."""
    x = np.stack([np.ones(12), np.repeat([0.0, 0.0, 1.0, 1.0], 3)], axis=-1)[None]
    groups = np.repeat(np.arange(4), 3)
    found = cluster_covariance(groups, x, np.ones((1, 12)), np.zeros((1, 12)))
    assert found.dof(np.array([[0.0, 1.0]]))[0] == pytest.approx(2.0), "two clusters a side: 2 x 2 - 2"
    assert found.dof(np.array([[1.0, 0.0]]))[0] == pytest.approx(1.0), "two clusters carry the first mean"


@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1, 2, 2, 2, 3], list(range(9))])
def test_the_cluster_covariance_is_cr2_written_out(groups):
    """Against the formula with explicit inverses and matrix roots, one study at a time."""
    rng = np.random.default_rng(1)
    groups = np.array(groups)
    jacobian, weight, residual = (
        rng.normal(size=(2, 9, 3)),
        rng.uniform(1, 3, (2, 9)),
        rng.normal(size=(2, 9)),
    )
    for s in range(2):  # residuals of the fit
        scaled = jacobian[s].T * weight[s]
        residual[s] -= jacobian[s] @ np.linalg.solve(scaled @ jacobian[s], scaled @ residual[s])
    found = cluster_covariance(groups, jacobian, weight, residual).covariance
    for s in range(2):
        root = np.sqrt(weight[s])
        x, e = jacobian[s] * root[:, None], residual[s] * root
        bread = np.linalg.inv(x.T @ x)
        meat = np.zeros((3, 3))
        for g in set(groups):
            own = x[groups == g]
            scale = np.linalg.inv(sqrtm(np.eye(len(own)) - own @ bread @ own.T))
            score = own.T @ scale @ e[groups == g]
            meat += np.outer(score, score)
        assert found[s] == pytest.approx(bread @ meat @ bread, rel=1e-8)


def test_cr2_is_unbiased_where_the_residuals_are_independent():
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(5), 3)
    x = np.stack([np.ones(15), rng.normal(size=15)], axis=-1)
    hat = x @ np.linalg.inv(x.T @ x) @ x.T
    residual = rng.normal(size=(20000, 15)) @ (np.eye(15) - hat)
    copies = np.broadcast_to(x, (20000, 15, 2))
    mean = cluster_covariance(groups, copies, np.ones((20000, 15)), residual).covariance.mean(0)
    assert mean == pytest.approx(np.linalg.inv(x.T @ x), rel=0.03, abs=1e-3)


LAWS = {"E = 0, 6x": (0.0, 0.057, 6.0), "E = 1.3, 30x": (1.3, 0.2, 30.0)}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("sizes", "budgets", "share", "lack_of_fit"), [(5, 3, 0.8, 0.005), (8, 5, 0.5, 0.0)])
def test_the_headline_covers_where_trunks_are_known_and_far_too_little_where_they_are_not(
    law, sizes, budgets, share, lack_of_fit
):
    """A random effect a trunk pair; 2,000 studies: 95 % +- 2 % is four standard errors."""
    irreducible, exponent, span = LAWS[law]
    design = Design(
        sizes, 1, 0.002, 0.0, lack_of_fit, span, exponent, irreducible,
        num_budgets=budgets, trunk_share=share,
    )  # fmt: skip
    known = coverage(design, 1.25, 2000, 20261130)
    assert 0.93 <= known.covered <= 0.97
    assert abs(known.median - 1.25) < 0.005
    blind = coverage(design, 1.25, 2000, 20261130, clustered=False)
    assert blind.covered < 0.85
    null = coverage(design, 1.0, 2000, 20261130)
    assert 0.03 <= null.resolved <= 0.07


def test_simulated_branches_have_the_planted_correlation():
    made = simulate(Design(4, 1, 0.01, compute_range=10, num_budgets=2, trunk_share=0.7), 1.25, 20000, 3)
    noise = made.loss_variant - made.loss_variant.mean(0)
    correlation = np.corrcoef(noise.T)
    assert correlation[0, 1] == pytest.approx(0.7, abs=0.02) and abs(correlation[0, 2]) < 0.02
    assert noise.std(0) == pytest.approx(0.01, rel=0.03)
    assert np.diff(made.x_baseline[0])[::2] == pytest.approx(math.log(2))


def test_a_study_of_branches_has_as_many_units_as_trunk_pairs(tmp_path):
    found = ask(made_study(tmp_path, **BRANCHED))
    assert (found.arms.num_pairs, found.arms.num_clusters, found.arms.num_sizes) == (15, 5, 5)
    assert found.estimate.dof <= 5
    naive = pair_slope(blanked(found.arms), LEVEL)
    assert naive.ln_m == found.estimate.ln_m, "the same number; only how sure it is differs"
    assert found.estimate.hi - found.estimate.lo > 1.5 * (naive.hi - naive.lo)
    assert found.arms.swapped().num_clusters == 5


def test_seeds_of_a_size_link_its_budgets_and_no_others(tmp_path):
    arms = ask(made_study(tmp_path, **BRANCHED | {"seeds": 2})).arms
    assert arms.clusters.tolist() == [i for i in range(5) for _ in range(3)] or arms.num_clusters == 5
    assert {arms.sizes[k] for k in np.flatnonzero(arms.clusters == 0)} == {"d2w64"}


def test_the_plan_s_trunk_counts_where_a_branch_was_trained_alone(tmp_path):
    """parent_id of a record says how a run was executed; that it shares a trajectory is the plan's word."""
    study = planted(arms=(BASELINE, VARIANT), curves=False, **BRANCHED)
    for row in study.rows:
        row["parent_id"] = ""
    write_study(tmp_path / "alone", study)
    assert ask(Study(tmp_path / "alone")).arms.num_clusters == 5
    cells = tuple(cell.model_copy(update={"parent_id": ""}) for cell in study.plan.cells)
    write_study(
        tmp_path / "blank", dataclasses.replace(study, plan=study.plan.model_copy(update={"cells": cells}))
    )
    assert ask(Study(tmp_path / "blank")).arms.num_clusters == 15


def test_four_sizes_are_needed_however_many_branches_there_are(tmp_path):
    found = ask(made_study(tmp_path, **BRANCHED | {"sizes": 3}))
    assert found.row()["status"].startswith("refused: too few sizes: 3 ")


@pytest.mark.parametrize("estimator", ["fitted_curve", "joint", "pair_trend"])
def test_estimators_beside_it_have_the_jackknife_s_interval(tmp_path, estimator):
    study = made_study(tmp_path, **BRANCHED)
    found = ask(study, estimator=estimator)
    assert found.estimate.dof == 4
    naive = Comparison(study).answer(found.question).estimate
    assert naive.sd == found.estimate.sd, "asked twice: the same answer"


def test_the_jackknife_is_its_formula(tmp_path):
    arms = ask(made_study(tmp_path, **BRANCHED)).arms
    apart = blanked(arms)
    whole = fitted_curve(apart, LEVEL).ln_m
    moves = [fitted_curve(rungs_where(apart, arms.clusters != g), LEVEL).ln_m - whole for g in range(5)]
    found = fitted_curve(arms, LEVEL)
    assert found.ln_m == whole
    assert found.sd == pytest.approx(math.sqrt(4 / 5 * sum(move**2 for move in moves)), rel=1e-12)


def test_too_few_clusters_for_a_jackknife_are_refused_and_say_so(tmp_path):
    status = ask(made_study(tmp_path, **BRANCHED | {"sizes": 4}), estimator="fitted_curve").row()["status"]
    assert (
        "runs share trunks, and without one of the 4 clusters there is no estimate (too few sizes: 3"
        in status
    )


def test_tests_count_clusters_and_those_that_cannot_are_not_given(tmp_path):
    arms = ask(made_study(tmp_path, **BRANCHED)).arms
    rows = {row["model"]: row for row in compare_models(arms)}
    naive = {row["model"]: row for row in compare_models(blanked(arms))}
    assert rows["M3"]["p"] is None and "not independent" in rows["M3"]["test"]
    assert all(row["aicc"] is None for row in rows.values())
    assert naive["M3"]["p"] is not None
    assert rows["M0"]["p"] > naive["M0"]["p"]


def test_the_paired_slope_test_keeps_its_level_with_a_random_effect_a_cluster():
    """2,000 studies without a slope: 5 % +- 1.5 are said to have one; blind to clusters, over twice as many."""
    rng = np.random.default_rng(4)
    clusters = np.repeat(np.arange(6), 3)
    x = np.repeat(np.linspace(0, 3, 6), 3) + np.tile([-0.3, 0, 0.3], 6)
    p = []
    for _ in range(2000):
        y = rng.normal(size=6)[clusters] + 0.5 * rng.normal(size=18)
        p.append((paired_slope_test(x, y, np.ones(18), clusters), paired_slope_test(x, y, np.ones(18))))
    known, blind = (np.array(p) < 0.05).mean(0)
    assert 0.02 <= known <= 0.065
    assert blind > 0.13


def test_the_bootstrap_draws_clusters(tmp_path):
    arms = ask(made_study(tmp_path, **BRANCHED | {"seeds": 2})).arms
    known, blind = bootstrap_pairs(arms), bootstrap_pairs(blanked(arms))
    assert known == bootstrap_pairs(arms)
    assert known.lo < pair_slope(arms, LEVEL).ln_m < known.hi
    assert known.hi - known.lo > 1.2 * (blind.hi - blind.lo)


def test_laws_of_branched_arms_have_errors_over_clusters(tmp_path):
    study = made_study(tmp_path, **BRANCHED | {"sizes": 6})
    points = points_of(study.cells, BASELINE)
    form = form_named("power_law")
    found = fit_arm(form, points)
    naive = fit_arm(form, dataclasses.replace(points, trunks=tuple(() for _ in points.trunks)))
    assert found.parameters == naive.parameters
    assert found.diagnostics["dof"] == 4 and naive.diagnostics["dof"] == 16
    assert "18 points of 6 clusters (shared trunks): standard errors by the jackknife" in found.message
    assert found.standard_errors["alpha"] != naive.standard_errors["alpha"]
    four = fit_arm(
        form_named("saturating"),
        points_of(made_study(tmp_path / "4", **BRANCHED | {"sizes": 4}).cells, BASELINE),
    )
    assert not four.usable or four.covariance is None or four.diagnostics["dof"] == 1


def test_seed_noise_of_branches_counts_its_degrees_of_freedom_once(tmp_path):
    study = made_study(tmp_path, **BRANCHED | {"seeds": 3, "trunk_noise": 0.01, "noise": 1e-5})
    noise = measure_noise(study.cells, BASELINE)
    assert noise["by_arm"][BASELINE]["dof"] == 2 * 5
    assert noise["pooled"]["sd"] == pytest.approx(0.01, rel=0.4)
    arms = ask(study).arms
    slopes = estimate_pair_slope(*inputs_of(arms))
    per_rung = 1 / 15 / (slopes.exponent[0] * slopes.excess[0])
    sd = noise["pairs"][VARIANT]["sd_difference"]
    whole = [per_rung[arms.clusters == g].sum() / 3 for g in range(5) for _ in range(3)]
    assert _seed_sd(arms) == pytest.approx(sd * math.sqrt(sum(v**2 for v in whole)), rel=1e-3)


def test_the_outlook_of_a_branched_plan_counts_trunks():
    branches = [
        {"role": "ladder", "variant": "a", "size": f"s{i}", "spec_id": f"{i}{j}", "parent_id": f"t{i}",
         "budget": 1e12 * 10**i * 2**j}
        for i in range(4) for j in range(5)
    ]  # fmt: skip
    singles = [{**cell, "parent_id": ""} for cell in branches if cell["spec_id"].endswith("2")]
    assert outlook(branches) == outlook(singles)


def test_w12_the_report_counts_trunks_apart_and_says_what_branches_are(tmp_path):
    study = planted(arms=(BASELINE, VARIANT), curves=False, **BRANCHED)
    cells, rows = list(study.plan.cells), list(study.rows)
    for parent in sorted({row["parent_id"] for row in study.rows}):
        last = next(row for row in reversed(study.rows) if row["parent_id"] == parent)
        rows.append({**last, "spec_id": parent, "parent_id": "", "schedule": "constant"})
        cell = study.plan.by_spec[last["spec_id"]]
        cells.append(
            cell.model_copy(
                update={"spec_id": parent, "pair_id": f"t{cell.pair_id}", "role": "trunk", "parent_id": ""}
            )
        )
    plan = study.plan.model_copy(update={"cells": tuple(cells)})
    write_study(tmp_path, dataclasses.replace(study, plan=plan, rows=rows))
    made = Study(tmp_path)
    counts = count_runs(made)
    assert (counts["planned"], counts["finished"]) == (30, 30)
    assert counts["trunks"]["planned"] == counts["trunks"]["finished"] == 10
    assert "30 runs are branches of 10 trunks" in counts["notes"][0]
    write_fits(made)
    comparison = Comparison(made)
    write_notes(made, write_multipliers(comparison))
    write_sensitivity(comparison)
    write_report(made)
    text = (tmp_path / "report.md").read_text()
    assert "30 runs are branches of 10 trunks" in text
    assert "trunks, beside them" in text and "as branches of trunks they count as 5" in text
    assert ask(made).arms.num_pairs == 15, "trunks enter no law"


def test_refusals_of_the_plain_estimator_stay_refusals(tmp_path):
    arms = ask(made_study(tmp_path, **BRANCHED)).arms
    bad = dataclasses.replace(arms, loss_variant=arms.loss_variant * 0.1)
    with pytest.raises(RefusalError, match="do not overlap"):
        fitted_curve(bad, LEVEL)
