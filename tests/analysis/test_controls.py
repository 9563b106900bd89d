"""Null and overhead controls, tuned rates, wall-clock: rows of the same table."""

import numpy as np
import pandas as pd
import pytest

from analysis.commands import main
from analysis.comparison import Comparison, Question, null_label, questions
from analysis.noise import measure_noise
from analysis.notes import write_notes
from analysis.plan_file import Plan
from analysis.rates import best_rates
from analysis.study import Study
from tests.analysis.planted import PlantedStudy, plan_throughput, planted, write_study
from tests.analysis.studies import BASELINE, VARIANT, ask, made_study


def throughput(folder, ratio, lo=None, hi=None, sizes=5):
    plan_throughput(
        folder, [VARIANT], ratio, lo, hi, sizes=[f"d{i + 2}w{32 * (i + 2)}" for i in range(sizes)]
    )


def test_s17_slowing_the_variant_changes_the_wall_clock_multiplier_only(tmp_path):
    made_study(tmp_path, overhead=0.03)
    found = {}
    for ratio in (1.0, 0.8):
        throughput(tmp_path, ratio)
        study = Study(tmp_path)
        found[ratio] = {
            axis: ask(study, axis=axis).estimate.compute_multiplier for axis in ("exact", "tokens", "wall")
        }
    assert found[1.0]["exact"] == found[0.8]["exact"]
    assert found[0.8]["wall"] / found[1.0]["wall"] == pytest.approx(0.8, rel=1e-12)
    # Equal-token multiplier times the ratio: the overhead in FLOPs must not count twice.
    assert found[1.0]["wall"] == found[1.0]["tokens"]


def test_an_uncertain_ratio_widens_the_wall_clock_interval(tmp_path):
    made_study(tmp_path)
    throughput(tmp_path, 0.8)
    sure = ask(Study(tmp_path), axis="wall").estimate
    throughput(tmp_path, 0.8, 0.6, 1.0)
    unsure = ask(Study(tmp_path), axis="wall").estimate
    assert unsure.ln_m == sure.ln_m
    assert unsure.hi - unsure.lo > 1.5 * (sure.hi - sure.lo)


def test_a_size_without_throughput_is_named(tmp_path):
    made_study(tmp_path)
    throughput(tmp_path, 0.9, sizes=4)
    status = ask(Study(tmp_path), axis="wall").row()["status"]
    assert status == "refused: no throughput measured: full_attnres at d6w192 (plan.json)"


def test_null_from_trained_seeds_contains_one(tmp_path):
    misses = 0
    for seed in range(20):
        study = made_study(tmp_path / str(seed), seeds=4, seed=seed)
        found = ask(study, variant=null_label(BASELINE))
        assert found.estimate.status == "converged"
        assert found.arms.num_pairs == 10
        misses += not found.estimate.lo <= 0 <= found.estimate.hi
    assert misses <= 3


def test_null_cells_of_the_plan_are_preferred(tmp_path):
    made = planted(sizes=5, seeds=2, arms=(BASELINE, VARIANT), curves=False)
    cells = [
        c.model_copy(update={"role": "null"}) if c.variant == BASELINE and c.seed == 1 else c
        for c in made.plan.cells
    ]
    plan = Plan(**{**made.plan.model_dump(), "cells": [c.model_dump() for c in cells]})
    write_study(tmp_path, PlantedStudy(plan, made.rows, []))
    found = ask(Study(tmp_path), variant=null_label(BASELINE))
    assert found.arms.num_pairs == 5
    assert ask(Study(tmp_path)).arms.num_pairs == 5


def control_study(
    folder, *, shares=(0.06, 0.05, 0.04, 0.035, 0.03), role="overhead_only", **options
) -> Study:
    """The arm ``control`` repeats the baseline's losses and pays ``shares`` of its FLOPs more, size by size."""
    arms = (BASELINE, "overhead_only")
    made = planted(**{"sizes": 5, "seeds": (2, 2, 1), "arms": arms, "curves": False} | options)
    loss = {(r["depth"], r["seed"]): r["val_loss"] for r in made.rows if r["variant"] == BASELINE}
    rows = []
    for row in made.rows:
        if row["variant"] != BASELINE:
            extra = shares[row["depth"] - 2] * row["compute"] / row["tokens"]
            row = row | {
                "val_loss": loss[row["depth"], row["seed"]],
                "flops_per_token_stream": extra,
                "compute": row["compute"] + extra * row["tokens"],
            }
        rows.append(row)
    cells = [c.model_copy(update={"role": role}) if c.variant != BASELINE else c for c in made.plan.cells]
    plan = Plan(**{**made.plan.model_dump(), "cells": [c.model_dump() for c in cells]})
    write_study(folder, PlantedStudy(plan, rows, []))
    return Study(folder)


LADDER_ESTIMATORS = ("pair_slope", "joint", "pair_trend", "fitted_curve")


@pytest.mark.parametrize("estimator", LADDER_ESTIMATORS)
def test_the_overhead_only_control_is_its_cost_on_exact_flops_and_1_at_equal_tokens(tmp_path, estimator):
    study = control_study(tmp_path)
    exact = ask(study, variant="overhead_only", estimator=estimator)
    shares = np.array([0.06, 0.05, 0.04, 0.035, 0.03])
    cost = float(np.exp(-np.average(np.log1p(shares), weights=[2, 2, 1, 1, 1])))
    assert exact.estimate.compute_multiplier == pytest.approx(cost, rel=1e-12)
    assert (exact.row()["lo"], exact.row()["hi"]) == (pytest.approx(1 / 1.06), pytest.approx(1 / 1.03))
    assert (exact.row()["verdict"], exact.row()["status"]) == ("costs compute: resolved", "exact")
    tokens = ask(study, variant="overhead_only", estimator=estimator, axis="tokens").row()
    assert (tokens["compute_multiplier"], tokens["lo"], tokens["hi"]) == (1.0, 1.0, 1.0)
    assert tokens["verdict"] == "identical arms"


def test_one_cost_at_every_size_is_exact_too(tmp_path):
    row = ask(control_study(tmp_path, shares=(0.05,) * 5), variant="overhead_only").row()
    assert row["compute_multiplier"] == pytest.approx(1 / 1.05, rel=1e-12)
    assert row["lo"] == pytest.approx(row["hi"], rel=1e-12)


def test_a_slower_control_costs_its_time_on_the_wall_clock(tmp_path):
    sizes = [f"d{i + 2}w{32 * (i + 2)}" for i in range(5)]
    control_study(tmp_path)
    plan_throughput(tmp_path, ["overhead_only"], 0.9, sizes=sizes)
    row = ask(Study(tmp_path), variant="overhead_only", axis="wall").row()
    assert row["compute_multiplier"] == pytest.approx(0.9, rel=1e-12)
    assert row["verdict"] == "costs compute: resolved"


def test_equal_losses_of_an_arm_that_is_no_control_are_refused(tmp_path):
    """A stream whose option is not wired trains the baseline: its multiplier would be a silent number."""
    study = control_study(tmp_path, role="ladder")
    for estimator in LADDER_ESTIMATORS:
        status = ask(study, variant="overhead_only", estimator=estimator).row()["status"]
        assert status.startswith(
            "refused: zero residual variance: every loss of overhead_only equals additive's"
        )


def test_the_whole_report_says_what_the_controls_give(tmp_path, capsys):
    control_study(tmp_path, seeds=2)
    assert main(["report", "--study", str(tmp_path)]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "which costs compute and changes nothing, gives" in text
    assert "at equal tokens, where it is 1: as it must." in text
    assert "The baseline against its own other seeds gives" in text
    assert "overhead_only" in capsys.readouterr().out


def test_a_noisy_control_is_estimated_like_any_arm(tmp_path):
    """An arm that changes nothing and costs 5 %: m = 1/1.05 on exact FLOPs, 1 at equal tokens."""
    made = planted(
        compute_multiplier=1 / 1.05,
        overhead=0.05,
        noise=5e-5,
        lack_of_fit=0,
        arms=(BASELINE, VARIANT),
        curves=False,
    )
    cells = [
        c.model_copy(update={"role": "overhead_only"}) if c.variant == VARIANT else c for c in made.plan.cells
    ]
    plan = Plan(**{**made.plan.model_dump(), "cells": [c.model_dump() for c in cells]})
    write_study(tmp_path, PlantedStudy(plan, made.rows, []))
    study = Study(tmp_path)
    assert ask(study).estimate.compute_multiplier == pytest.approx(1 / 1.05, abs=0.003)
    assert ask(study, axis="tokens").estimate.compute_multiplier == pytest.approx(1.0, abs=0.003)


def rate_study(folder, *, best_of_variant: float, sizes: int = 5) -> Study:
    """Four rates a size; the ladder stands at 2e-3; losses are parabolas in ln lr."""
    import math

    rates = (1e-3, 2e-3, 4e-3, 8e-3)
    made = planted(sizes=sizes, seeds=1, arms=(BASELINE, VARIANT), curves=False, lack_of_fit=0.0)
    rows, cells = [], []
    for row, cell in zip(made.rows, made.plan.cells, strict=True):
        best = 2e-3 if row["variant"] == BASELINE else best_of_variant
        for k, lr in enumerate(rates):
            loss = row["val_loss"] + 0.02 * math.log(lr / best) ** 2
            ids = {"spec_id": f"{row['spec_id']}r{k}", "lr": lr}
            rows.append(row | ids | {"val_loss": loss})
            role = "ladder" if lr == 2e-3 else "rate"
            cells.append(cell.model_copy(update=ids | {"pair_id": f"{cell.pair_id}r{k}", "role": role}))
    plan = Plan(**{**made.plan.model_dump(), "cells": [c.model_dump() for c in cells]})
    write_study(folder, PlantedStudy(plan, rows, []))
    return Study(folder)


def test_tuned_arms_stand_at_their_own_best_rate(tmp_path):
    study = rate_study(tmp_path, best_of_variant=4e-3)
    matched, tuned = ask(study), ask(study, rate="tuned")
    assert tuned.estimate.compute_multiplier == pytest.approx(1.25, abs=0.05)
    assert matched.estimate.compute_multiplier < 1.18
    assert {b.best for b in best_rates(study.cells) if b.variant == VARIANT} == {4e-3}
    optimum = [b.optimum for b in best_rates(study.cells) if b.variant == VARIANT]
    assert optimum == pytest.approx([4e-3] * 5, rel=1e-6)


def test_a_best_rate_at_the_edge_is_refused_and_named(tmp_path):
    study = rate_study(tmp_path, best_of_variant=8e-3)
    status = ask(study, rate="tuned").row()["status"]
    assert "best rate at the edge of those tried: full_attnres d2w64 at 0.008" in status


def test_rates_far_apart_are_noted_beside_the_matched_comparison(tmp_path):
    study = rate_study(tmp_path, best_of_variant=8e-3)
    comparison = Comparison(study)
    write_notes(study, [comparison.answer(q) for q in questions(study) if q.estimator == "pair_slope"])
    notes = [row["note"] for row in study.read_fits("notes")]
    assert any(
        "d2w64: full_attnres's best rate 0.008 is 2 steps (4x) from additive's 0.002" in n for n in notes
    )


def uneven_rates(folder, seeds_of: dict[float, tuple[int, ...]]) -> Study:
    """`rate_study` with further seeds at some rates; seed k shifts every loss by 0.05 k nats."""
    rate_study(folder, best_of_variant=4e-3)
    plan, rows, cells = Study(folder).plan, [], []
    for row in Study(folder).runs.astype(object).to_dict("records"):
        for seed in seeds_of[row["lr"]]:
            ids = {"spec_id": f"{row['spec_id']}s{seed}", "seed": seed}
            rows.append(row | ids | {"data_seed": seed, "val_loss": row["val_loss"] + 0.05 * seed})
            old = plan.by_spec[row["spec_id"]]
            cells.append(old.model_copy(update=ids | {"pair_id": f"{old.pair_id}s{seed}"}))
    changed = Plan(**{**plan.model_dump(), "cells": [c.model_dump() for c in cells]})
    write_study(folder, PlantedStudy(changed, rows, []))
    return Study(folder)


def test_rates_are_compared_over_the_seeds_that_all_of_them_have(tmp_path):
    """The true best of the variant, 4e-3, has two unlucky seeds more than the others."""
    seeds = {1e-3: (0,), 2e-3: (0, 1), 4e-3: (0, 1, 2), 8e-3: (0,)}
    found = [b for b in best_rates(uneven_rates(tmp_path, seeds).cells) if b.variant == VARIANT]
    assert [b.best for b in found] == [4e-3] * 5
    assert [b.seeds for b in found] == [[0]] * 5
    assert [b.optimum for b in found] == pytest.approx([4e-3] * 5, rel=1e-6)


def test_rates_that_share_no_seed_have_no_best_and_say_so(tmp_path):
    study = uneven_rates(tmp_path, {1e-3: (1,), 2e-3: (0,), 4e-3: (0, 1), 8e-3: (0,)})
    assert best_rates(study.cells) == []
    words = (
        f"{VARIANT} at d2w64: the rates 0.001, 0.002, 0.004, 0.008 share no seed, so none can be called best"
    )
    assert words in ask(study, rate="tuned").row()["status"]
    write_notes(study, [ask(study)])
    assert words in [row["note"] for row in study.read_fits("notes")]


def test_s10_seed_sd_is_measured_and_small_effects_are_called_noise(tmp_path):
    study = made_study(tmp_path, seeds=4, noise=0.01, compute_multiplier=1.02, lack_of_fit=0.0)
    noise = measure_noise(study.cells, BASELINE)
    assert noise["pooled"]["dof"] == 30
    assert noise["pooled"]["sd"] == pytest.approx(0.01, rel=0.4)
    assert noise["pairs"][VARIANT]["correlation"] == pytest.approx(0.5, abs=0.35)
    write_notes(study, [Comparison(study).answer(Question(VARIANT, "pair_slope", "exact", "matched"))])
    assert any(row["note"].startswith("noise: ") for row in study.read_fits("notes"))


def test_noise_of_single_seeds_is_unknown_not_zero(tmp_path):
    noise = measure_noise(made_study(tmp_path, seeds=1).cells, BASELINE)
    assert noise["pooled"] == {"sd": None, "dof": 0}


def test_s09_a_standard_error_near_the_effect_is_noted(tmp_path):
    study = made_study(tmp_path)
    study.runs["val_loss_se"] = 0.02
    write_notes(study, [ask(study)])
    assert any("standard error" in row["note"] for row in study.read_fits("notes"))


def test_frames_read_from_files_are_typed(tmp_path):
    made_study(tmp_path)
    throughput(tmp_path, 0.9)
    throughput_frame = Study(tmp_path).throughput
    assert isinstance(throughput_frame, pd.DataFrame)
    assert throughput_frame["ratio"].dtype == float
