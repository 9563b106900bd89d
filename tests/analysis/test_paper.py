"""The published numbers through this analysis: the answers, and that what is drawn is what was published."""

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.commands import main
from analysis.figures.base import Drawn, read_data
from analysis.figures.style import settle, styled
from analysis.paper.claim import ARROW_FROM, ARROW_TO, multiplier_at
from analysis.paper.figures.base import PALETTE, PAPER_FIGURES
from analysis.paper.numbers import compute_numbers
from analysis.paper.page import page_of
from analysis.published import attnres_ablations as ablations
from analysis.published import attnres_dynamics as dynamics
from analysis.published import attnres_weights as weights
from analysis.published.attnres_scaling import (
    BASELINE,
    BLOCK,
    FULL,
    MHC,
    PLOTTED_COMPUTE_PFLOPS_DAYS,
    TABLE_2,
    Curve,
)
from tests.analysis.pictures import overlaps, streams
from tests.analysis.planted import planted_study

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "paper"
FIGURES = ("figure_4", "figure_5", "figure_6", "figure_7", "figure_8", "side_by_side")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/paper, made again."""
    out = tmp_path_factory.mktemp("results") / "paper"
    assert main(["paper", "--out", str(out), "--results", str(COMMITTED.parent)]) == 0
    return out


def multipliers(folder: Path) -> pd.DataFrame:
    """The re-analysis: pair + slope, E = 0, compute 6 N D, by arm."""
    table = pd.read_csv(folder / "multipliers.csv")
    own = table.query("estimator == 'pair_slope' and irreducible == 'fixed: 0' and compute_axis == '6nd'")
    return own.set_index("variant")


@pytest.mark.parametrize(
    ("arm", "m", "lo", "hi"),
    [(BLOCK, 1.239, 1.189, 1.291), (FULL, 1.306, 1.240, 1.377), (MHC, 1.264, 1.222, 1.308)],
)
def test_the_multipliers_are_those_of_the_specification(
    folder: Path, arm: str, m: float, lo: float, hi: float
) -> None:
    row = multipliers(folder).loc[arm]
    assert (row["compute_multiplier"], row["lo"], row["hi"]) == pytest.approx((m, lo, hi), abs=5e-4)
    page = (folder / "paper.md").read_text()
    assert f"[{m:.3f} \\[{lo:.3f}, {hi:.3f}\\]](#reanalysed)" in page


def test_exponents_and_slope_tests_are_those_of_the_specification(folder: Path) -> None:
    tests = pd.read_csv(folder / "tests.csv")
    paired = tests[tests["test"].str.startswith("paired")].set_index("variant")["p"]
    assert dict(paired) == pytest.approx({BLOCK: 0.16, FULL: 0.58, MHC: 0.99}, abs=5e-3)
    unpaired = tests[tests["test"].str.startswith("ANCOVA")].set_index("variant")["p"]
    assert unpaired[BLOCK] == pytest.approx(0.55, abs=5e-3)
    laws = {p.name: read_law(p) for p in (folder / "fits").iterdir()}
    exponents = [laws[f"power_law--{arm}_6nd.json"]["alpha"] for arm in (BASELINE, BLOCK, FULL)]
    assert exponents == pytest.approx([0.0549, 0.0565, 0.0558], abs=5e-5)
    plotted = [laws[f"power_law--{arm}_plotted.json"] for arm in (BASELINE, BLOCK, FULL, MHC)]
    assert [law["A"] for law in plotted] == pytest.approx([1.8921, 1.8716, 1.8653, 1.8680], abs=5e-5)
    assert [law["alpha"] for law in plotted] == pytest.approx([0.0566, 0.0582, 0.0574, 0.0566], abs=5e-5)


def read_law(path: Path) -> dict[str, float]:
    """Parameters of a fit."""
    parameters: dict[str, float] = pd.read_json(path, typ="series")["parameters"]
    return parameters


def test_the_claim_follows_from_the_printed_and_the_drawn_curves(folder: Path) -> None:
    curves = pd.read_csv(folder / "curves.csv").query(
        "variant == 'block_attnres' and compute_pflops_days == 5.6"
    )
    found = curves.set_index("curves")
    printed, drawn = found.loc["printed"], found.loc["drawn"]
    assert (printed["loss_baseline"], printed["loss_variant"]) == pytest.approx((1.7141, 1.6922), abs=5e-5)
    assert printed["compute_multiplier"] == pytest.approx(1.254, abs=5e-4)
    assert drawn["compute_multiplier"] == pytest.approx(1.267, abs=5e-4)


def test_the_multiplier_of_two_curves_is_their_horizontal_gap() -> None:
    """Curves a constant factor of compute apart give that factor everywhere."""
    base = Curve(1.9, 0.06)
    shifted = Curve(1.9 * 1.25**-0.06, 0.06)
    for compute in (0.1, 1.0, 30.0):
        assert multiplier_at(base, shifted, compute) == pytest.approx(1.25, rel=1e-12)
    assert multiplier_at(base, base, 7.0) == pytest.approx(1.0, rel=1e-12)


def test_the_range_of_the_printed_digits_holds_every_curve_that_prints_alike(folder: Path) -> None:
    coefficients, losses = pd.read_csv(folder / "rounding.csv").to_dict("records")
    rng = np.random.default_rng(0)
    moved = rng.uniform(-0.0005, 0.0005, (20000, 4)) + np.array([1.891, 0.057, 1.870, 0.058])
    inside = [multiplier_at(Curve(a, b), Curve(c, d), 5.6) for a, b, c, d in moved]
    assert coefficients["lo"] <= min(inside) <= coefficients["lo"] + 0.02
    assert coefficients["hi"] - 0.02 <= max(inside) <= coefficients["hi"]
    slope = math.log(1.714 / 1.692) / 0.057
    spread = (0.0005 / 1.714 + 0.0005 / 1.692) / 0.057 + slope * 0.0005 / 0.057  # first order
    assert math.log(losses["hi"]) - slope == pytest.approx(spread, rel=0.03)


def test_rounding_of_the_losses_moves_the_multiplier_as_error_propagation_says(folder: Path) -> None:
    """Each difference of two rounded losses has sd 0.001 / sqrt(6); the mean of five moves ln m by it over L a."""
    table = (
        pd.read_csv(folder / "sensitivity.csv").query("kind == 'rounding of the losses'").set_index("variant")
    )
    row = table.loc[BLOCK]
    loss = float(np.mean([(cell.loss[BASELINE] + cell.loss[BLOCK]) / 2 for cell in TABLE_2]))
    sd = 0.001 / math.sqrt(6) / math.sqrt(5) / (loss * 0.0557)
    assert math.log(row["hi"] / row["lo"]) == pytest.approx(2 * 1.96 * sd, rel=0.06)


def test_others_are_put_through_the_same_estimator(folder: Path) -> None:
    table = pd.read_csv(folder / "elsewhere.csv").set_index("variant")
    assert list(table["source"].unique()) == ["ilml/Attention-Residuals README @ b290fcc"]
    # Size by size with their slope: 1.29, 1.14, 1.11, 1.16, 1.28; the geometric mean is 1.19.
    assert table.loc[BLOCK, "compute_multiplier"] == pytest.approx(1.194, abs=0.01)
    assert table.loc[FULL, "verdict"].startswith("not resolved")


def test_marin_through_its_own_formula_gives_what_it_states(folder: Path) -> None:
    table = pd.read_csv(folder / "marin.csv").dropna(subset=["stated"])
    assert len(table) == 2
    assert list(table["compute_multiplier"].round(2)) == list(table["stated"])


def test_differences_are_in_nats_whatever_was_published(folder: Path) -> None:
    table = pd.read_csv(folder / "differences.csv")
    perplexity = table.query(
        "metric == 'perplexity' and baseline_value == 122.19 and variant == 'block_attnres'"
    )
    assert perplexity["difference_nats"].iloc[0] == pytest.approx(math.log(122.19 / 105.05))
    assert table.query("metric == 'bits_per_byte'")["difference_nats"].isna().all()
    reversed_pair = table.query("baseline_value == 3.290")
    assert reversed_pair["difference_nats"].iloc[0] == pytest.approx(-0.055)


def test_figure_4_draws_table_2(folder: Path) -> None:
    table = read_data(folder / "figures" / "figure_4.csv")
    points = table[table["item"] == "point"]
    assert len(points) == 15
    for arm in (BASELINE, BLOCK, FULL):
        own = points[points["variant"] == arm]
        assert tuple(own["compute"]) == PLOTTED_COMPUTE_PFLOPS_DAYS
        assert tuple(own["loss"]) == tuple(cell.loss[arm] for cell in TABLE_2)
    assert set(table[table["item"] == "curve"]["variant"]) == {BASELINE, BLOCK, FULL}
    assert tuple(table[table["item"] == "arrow"]["compute"]) == (ARROW_FROM, ARROW_TO)


def test_figure_5_draws_its_facts(folder: Path) -> None:
    table = read_data(folder / "figures" / "figure_5.csv")

    def series(panel: str, arm: str) -> tuple[float, ...]:
        return tuple(table[(table["panel"] == panel) & (table["variant"] == arm)]["value"])

    assert series("loss", BLOCK) == tuple(point.block_attnres for point in dynamics.VALIDATION_LOSS)
    assert series("output", BASELINE) == dynamics.OUTPUT_MAGNITUDE_BASELINE
    assert series("output", BLOCK) == dynamics.OUTPUT_MAGNITUDE_BLOCK
    assert series("gradient", BASELINE) == dynamics.GRADIENT_MAGNITUDE_BASELINE
    assert series("gradient", BLOCK) == dynamics.GRADIENT_MAGNITUDE_BLOCK


def test_figures_6_and_7_draw_their_facts(folder: Path) -> None:
    table = read_data(folder / "figures" / "figure_6.csv")
    own = table[table["variant"] == BLOCK]
    assert dict(zip(own["block_size"], own["loss"], strict=True)) == dict(ablations.BLOCK_SIZE_LOSS)
    table = read_data(folder / "figures" / "figure_7.csv")
    for arm, grid in (
        ("baseline", ablations.ARCHITECTURE_BASELINE),
        ("attnres", ablations.ARCHITECTURE_ATTNRES),
    ):
        values = table[table["variant"] == arm]["loss"].to_numpy().reshape(5, 5)
        assert (values == np.array(grid)).all()


def test_figure_8_draws_its_facts(folder: Path) -> None:
    rows = read_data(folder / "figures" / "figure_8.csv").set_index(["stream", "place", "block", "source"])
    table = rows["weight"].sort_index()
    for place, grid in (("attention", weights.BLOCK_BEFORE_ATTENTION), ("mlp", weights.BLOCK_BEFORE_MLP)):
        for block, row in enumerate(grid, start=1):
            assert tuple(table.loc["block", place, block].sort_index()) == row
    assert table["full", "attention", 4, 5] == 0.755
    assert table["full", "attention", 16, 27] == 0.596
    assert table["full", "attention", 2, 2] == 0.389
    assert table["full", "mlp", 16, 31] == 0.185
    assert [table["full", "mlp", b, 0] for b in range(1, 17)] == list(weights.FULL_EMBEDDING_BEFORE_MLP)
    full = table["full"].reset_index()
    available = 2 * full["block"] - 1 - (full["place"] == "attention")
    assert (full["source"] <= available).all()


def test_tables_1_2_and_4_stand_in_the_page(folder: Path) -> None:
    page = (folder / "paper.md").read_text()
    assert "| block two phase | N/S + 5 | 5.5 | 5.5 |" in page
    for cell in TABLE_2:
        losses = " | ".join(f"{cell.loss[arm]:.3f}" for arm in (BASELINE, BLOCK, FULL, MHC))
        assert f"| {cell.params_active / 1e6:g}M | {cell.tokens / 1e9:g}B | {cell.depth} |" in page
        assert losses in page
    for row in ablations.TABLE_4:
        assert f"| {row.label} | {row.loss:.3f} |" in page


def test_the_same_bytes_again_and_no_type_3_fonts(folder: Path, tmp_path: Path) -> None:
    assert main(["paper", "--out", str(tmp_path), "--results", str(COMMITTED.parent)]) == 0
    names = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert {f"figures/{name}.{kind}" for name in FIGURES for kind in ("csv", "svg", "pdf", "png")} <= set(
        map(str, names)
    )
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
        if name.suffix == ".pdf":
            data = (tmp_path / name).read_bytes()
            assert b"/Type3" not in b"".join([data, *streams(data)])


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_of_the_paper_s_figures_overlaps(folder: Path, name: str) -> None:
    with styled():
        figure = PAPER_FIGURES.get(name)().draw(read_data(folder / "figures" / f"{name}.csv"), PALETTE)
        settle(figure)
        assert not overlaps(figure)


def test_a_committed_study_joins_the_page_and_a_local_one_does_not(tmp_path: Path) -> None:
    planted_study(tmp_path / "study", curves=False)
    assert main(["fits", "--study", str(tmp_path / "study")]) == 0
    assert main(["multipliers", "--study", str(tmp_path / "study")]) == 0
    shutil.copytree(tmp_path / "study", tmp_path / "demo")
    numbers = compute_numbers(tmp_path)
    assert {row["study"] for row in numbers.here} == {"study"}
    own = pd.read_csv(tmp_path / "study" / "multipliers.csv").query(
        "estimator == 'pair_slope' and compute_axis == 'exact' and rate == 'matched' and variant == 'full_attnres'"
    )
    row = next(r for r in numbers.here if r["variant"] == "full_attnres" and r["compute_axis"] == "exact")
    assert row["compute_multiplier"] == own["compute_multiplier"].iloc[0]
    side = PAPER_FIGURES.get("side_by_side")().table(numbers)
    assert len(side[side["group"] == "here"]) == 2
    with styled():
        figure = PAPER_FIGURES.get("side_by_side")().draw(side, PALETTE)
        settle(figure)
        assert not overlaps(figure)
    words = [str(line) for line in page_of(numbers, [Drawn("side_by_side", "")]).lines()]
    assert not any("No study of this project" in line for line in words)


def test_results_paper_is_not_stale(folder: Path) -> None:
    """The committed page and tables are those that `make paper` writes now (pictures aside)."""
    assert COMMITTED.is_dir(), "results/paper is missing: run make paper and commit it"
    for path in sorted(folder.rglob("*")):
        committed = COMMITTED / path.relative_to(folder)
        if path.suffix == ".md":
            assert committed.read_text() == path.read_text(), f"{committed} is stale: run make paper"
        if path.suffix == ".csv":
            assert same_numbers(committed.read_text(), path.read_text()), (
                f"{committed} is stale: run make paper"
            )


def same_numbers(one: str, other: str) -> bool:
    """Whether two texts agree, their numbers to nine digits."""
    pattern = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")
    if pattern.sub("#", one) != pattern.sub("#", other):
        return False
    pairs = zip(map(float, pattern.findall(one)), map(float, pattern.findall(other)), strict=True)
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs)
