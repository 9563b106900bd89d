"""Figures of rates, slices, held-out budgets, power and dynamics: values, overlap, alarms."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.commands import main
from analysis.dynamics import DepthRun, alarms, depth_runs, every_depth_run, spikes
from analysis.figures import FIGURES, draw
from analysis.figures.base import read_data
from analysis.figures.style import palette_of, settle, styled
from analysis.pilot import design_of_pilot
from analysis.power import expected
from analysis.report import report_of
from analysis.report.svg import SVG, XLINK, inline_svg
from analysis.study import Study
from attnres.errors import UserError
from tests.analysis.depth_planted import write_dynamics
from tests.analysis.pictures import overlaps
from tests.analysis.planted import ARMS, PlantedStudy, planted, write_study

DRAWN = ("held_out", "power", "learning_rates", "output_magnitude", "gradient_magnitude", "mixing_weights")
RATES = (7.5e-4, 1.5e-3, 6e-3, 1.2e-2)
BEST = {ARMS[0]: 2.5e-3, ARMS[1]: 3.5e-3, ARMS[2]: 3.0e-3}


def swept(made: PlantedStudy, depth: int) -> PlantedStudy:
    """``made`` with four more learning rates at one size: exact parabolas in ln lr around `BEST`."""
    rows, cells = [], list(made.plan.cells)
    for row, cell in zip(made.rows, made.plan.cells, strict=True):
        at_best = 0.02 * math.log(row["lr"] / BEST[row["variant"]]) ** 2 if row["depth"] == depth else 0.0
        rows.append(row | {"val_loss": row["val_loss"] + at_best})
        if row["depth"] != depth or row["seed"] != 0:
            continue
        for k, lr in enumerate(RATES):
            loss = row["val_loss"] + 0.02 * math.log(lr / BEST[row["variant"]]) ** 2
            names = {"spec_id": f"{row['spec_id']}r{k}", "lr": lr}
            rows.append(row | names | {"val_loss": loss})
            cells.append(cell.model_copy(update=names | {"pair_id": f"{cell.pair_id}r{k}", "role": "rate"}))
    return replace(made, rows=rows, plan=made.plan.model_copy(update={"cells": tuple(cells)}))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Rates at one size, dynamics of the first seed of every size; Full has a spike at sublayer 3."""
    folder = tmp_path_factory.mktemp("depth")
    made = swept(planted(compute_multiplier=(1.25, 1.1), seeds=(2, 2, 1), curves=False), depth=4)
    write_study(folder, made)
    for cell in made.plan.cells:
        if cell.seed == 0 and cell.role == "ladder":
            write_dynamics(folder, cell, spike_at=3 if cell.stream == "full_attnres" else None)
    assert main(["report", "--study", str(folder)]) == 0
    return Study(folder)


def data(study: Study, name: str) -> pd.DataFrame:
    """The data file of a figure."""
    return read_data(study.folder / "figures" / f"{name}.csv")


@pytest.mark.parametrize("name", DRAWN)
def test_p06_no_text_overlaps(study: Study, name: str) -> None:
    with styled():
        table, palette = data(study, name), palette_of(study.plan.arms, study.plan.baseline)
        figure = FIGURES.get(name)().draw(table, palette)
        settle(figure)
        assert not overlaps(figure)


def test_parabolas_have_their_lowest_point_where_it_was_planted(study: Study) -> None:
    table = data(study, "learning_rates")
    best = table[table["item"] == "optimum"].set_index("variant")["lr"]
    assert dict(best) == pytest.approx(BEST, rel=1e-6)
    for arm in ARMS:
        curve = table[(table["item"] == "parabola") & (table["variant"] == arm)]
        lowest = curve.loc[curve["loss"].idxmin(), "lr"]
        assert lowest == pytest.approx(BEST[arm], rel=0.1)
    assert "edge" not in FIGURES.get("learning_rates")().caption(table)


def test_a_best_rate_at_the_edge_is_named(tmp_path: Path) -> None:
    made = swept(planted(curves=False), depth=4)
    rows = [
        row | {"val_loss": row["val_loss"] - 1.0}
        if row["lr"] == RATES[-1] and row["variant"] == ARMS[1]
        else row
        for row in made.rows
    ]
    write_study(tmp_path, replace(made, rows=rows))
    assert main(["fits", "--study", str(tmp_path)]) == 0
    one = draw(Study(tmp_path), "learning_rates")
    assert f"Best at the edge of the rates tried: {ARMS[1]} at d4w128." in one.caption


def test_held_out_predictions_are_those_of_the_fits(study: Study) -> None:
    table = data(study, "held_out")
    rows = [row for row in study.read_fits("holdout") if row["predicted"] is not None]
    assert len(table) == len(rows) > 0
    assert list(table["predicted"]) == [row["predicted"] for row in rows]
    inside = sum(row["inside"] is True for row in rows)
    assert f"{inside} of {len(rows)} contain it" in FIGURES.get("held_out")().caption(table)


def test_power_is_that_of_the_planner(study: Study) -> None:
    table = data(study, "power")
    design = design_of_pilot(study, ARMS[1])
    for seeds in (1, 4):
        own = table.query("variant == @ARMS[1] and seeds == @seeds and compute_multiplier == 1.05")
        assert own["power"].iloc[0] == expected(replace(design, num_seeds=seeds), 1.05).power
    for _, own in table.groupby(["variant", "compute_multiplier"]):
        assert own["power"].is_monotonic_increasing


def test_profiles_are_those_of_the_last_step_of_the_largest_size(study: Study) -> None:
    table = data(study, "output_magnitude")
    assert set(table["size"]) == {"d6w192"}
    own = table[(table["variant"] == ARMS[0]) & (table["item"] == "profile")]
    assert np.allclose(own["value"], 2 * np.exp(0.4 * np.arange(12)))
    course = table[(table["variant"] == ARMS[0]) & (table["item"] == "course")]
    assert list(course["x"]) == [1, 50, 100, 200]
    gradient = data(study, "gradient_magnitude")
    blocks = gradient[(gradient["variant"] == ARMS[0]) & (gradient["item"] == "profile")]
    assert list(blocks["x"]) == [1, 2, 3, 4, 5, 6]


def test_figures_are_vectors_and_stay_whole_in_the_page(study: Study) -> None:
    """An image inside an SVG is lost in HTML, where its address needs another name space."""
    assert set(DRAWN) <= {path.stem for path in (study.folder / "figures").glob("*.svg")}
    for path in (study.folder / "figures").glob("*.svg"):
        assert "<image" not in path.read_text(), path.name
    page = (study.folder / "report.html").read_text()
    assert "xmlns:ns" not in page
    linked = '<svg xmlns="{}" xmlns:xlink="{}"><image xlink:href="data:a"/><use xlink:href="#b"/></svg>'
    made = inline_svg(linked.format(SVG, XLINK), "fig", "title", {}, {})
    assert '<image href="data:a"' in made.replace("svg:", "")
    assert 'href="#fig-b"' in made


def test_mixing_weights_are_shown_for_the_arms_that_mix(study: Study) -> None:
    table = data(study, "mixing_weights")
    assert set(table["variant"]) == set(ARMS[1:])
    reads = table[table["kind"] != "output"].groupby(["variant", "kind", "block"])["weight"].sum()
    assert np.allclose(reads, 1.0)
    run = next(run for run in depth_runs(study) if run.variant == ARMS[1])
    own = run.at_end("weight").query("kind == 'mlp'")
    shown = table[(table["variant"] == ARMS[1]) & (table["kind"] == "mlp")]
    assert np.allclose(shown["weight"], own["value"])
    assert list(shown["block"]) == [site // 2 + 1 for site in own["site"]]


def test_a_spike_is_an_alarm_and_a_steady_growth_is_not(study: Study) -> None:
    """Every run is looked at; the shallowest has the fewest neighbours: sublayer 1, the other MLP."""
    runs = every_depth_run(study)
    assert [len([run for run in runs if run.variant == arm]) for arm in ARMS] == [5, 5, 5]
    found = list(alarms(runs))
    times = f"{40 * math.exp(0.05 * (3 - 1)):.3g}"
    assert len(found) == 1
    assert found[0].startswith(
        f"{ARMS[2]}: 5 of 5 runs have a spike over depth; the largest: output of sublayer 3, {times} times "
    )
    assert f"output of sublayer 3, {times} times" in (study.folder / "report.md").read_text()


@pytest.mark.parametrize("quantity", ["output", "hidden", "gradient"])
@pytest.mark.parametrize("site", [0, 5, 11])
def test_a_spike_at_any_step_and_either_end_is_found(quantity: str, site: int) -> None:
    rows = [
        {"step": step, "site": k, "kind": ("attention", "mlp")[k % 2], "source": -1, "quantity": quantity}
        | {"value": math.exp(0.4 * k) * (50.0 if k % 2 else 1.0) * (60.0 if (step, k) == (7, site) else 1.0)}
        for step in (1, 7, 20)
        for k in range(12)
    ]
    run = DepthRun("arm", "id", "d6w8", 0, pd.DataFrame(rows))
    (spike,) = spikes(run)  # and none for the MLPs, 50 times the attentions at every step
    assert (spike.quantity, spike.site, spike.step) == (quantity, site, 7)
    assert spike.times > 10
    steady = run.table[run.table["step"] != 7]
    assert spikes(replace(run, table=steady)) == []


def test_collapsed_reads_are_an_alarm(tmp_path: Path) -> None:
    made = planted(curves=False)
    write_study(tmp_path, made)
    for cell in made.plan.cells:
        if cell.size == "d2w64" and cell.seed == 0:
            write_dynamics(tmp_path, cell, collapsed=cell.stream == "block_attnres")
    assert list(alarms(every_depth_run(Study(tmp_path)))) == [
        f"{ARMS[1]}: 1 of 1 runs has reads that attend to one source alone at the end; the most: 4 of 4 "
        "(sites 1, 2, 3, 4; d2w64, seed 0)"
    ]


def test_a_study_without_dynamics_says_so(tmp_path: Path) -> None:
    write_study(tmp_path, planted(curves=False))
    study = Study(tmp_path)
    assert draw(study, "mixing_weights").missing == "needs dynamics"
    assert main(["fits", "--study", str(tmp_path)]) == 0
    assert main(["multipliers", "--study", str(tmp_path)]) == 0
    document = report_of(Study(tmp_path), [])
    assert any("No run of this study has a file in dynamics/." in str(line) for line in document.lines())


def test_a_broken_dynamics_file_is_named(tmp_path: Path) -> None:
    made = planted(curves=False)
    write_study(tmp_path, made)
    (tmp_path / "dynamics").mkdir()
    spec_id = made.plan.cells[-1].spec_id
    pd.DataFrame({"step": [1], "site": [0]}).to_parquet(tmp_path / "dynamics" / f"{spec_id}.parquet")
    with pytest.raises(UserError, match=rf"{spec_id}\.parquet: no column kind, source, quantity, value"):
        depth_runs(Study(tmp_path))


def test_isoflop_slices_find_the_planted_optimum(tmp_path: Path) -> None:
    """Exact parabolas in ln N with the optimum N = C^0.5 / 4 at every budget."""
    made = planted(arms=ARMS[:2], curves=False, seeds=1)
    rows, cells = [], []
    budgets = (1e12, 4e12, 1.6e13)
    for budget in budgets:
        for row, cell in zip(made.rows, made.plan.cells, strict=True):
            params = 13 * row["depth"] * row["width"] ** 2 + 256 * row["width"] + row["params_stream"]
            optimum = budget**0.5 / 4
            loss = 2.0 - 0.05 * math.log(budget / 1e12) + 0.04 * math.log(params / optimum) ** 2
            names = {"spec_id": f"{row['spec_id']}b{budget:.0e}", "budget": budget}
            rows.append(row | names | {"val_loss": loss})
            cells.append(cell.model_copy(update=names | {"pair_id": f"{cell.pair_id}b{budget:.0e}"}))
    plan = made.plan.model_copy(update={"cells": tuple(cells)})
    write_study(tmp_path, replace(made, rows=rows, plan=plan))
    assert main(["fits", "--study", str(tmp_path)]) == 0
    study = Study(tmp_path)
    one = draw(study, "isoflop_slices")
    assert one.exists, one.missing
    table = data(study, "isoflop_slices")
    assert set(table[table["item"] == "point"]["budget"]) == set(budgets)
    found = table[table["item"] == "optimum"]
    inside = found[found["variant"] == ARMS[0]]
    assert len(inside) == 3
    assert np.allclose(inside["params"], inside["budget"] ** 0.5 / 4, rtol=1e-6)
    law = table[(table["item"] == "law") & (table["variant"] == ARMS[0])]
    assert law["exponent"].iloc[0] == pytest.approx(0.5, rel=1e-6)
    with styled():
        figure = FIGURES.get("isoflop_slices")().draw(table, palette_of(study.plan.arms, study.plan.baseline))
        settle(figure)
        assert not overlaps(figure)


def test_a_ladder_has_no_slices(study: Study) -> None:
    assert study.read_fits("isoflop") == []
    assert draw(study, "isoflop_slices").missing == "no budget was trained at three sizes"
