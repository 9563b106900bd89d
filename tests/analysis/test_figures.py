"""Figures of made-up studies: bytes, fonts, labels, colours, overlap (cases P01-P08)."""

import hashlib
import itertools
import logging
import math
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

from analysis.commands import main
from analysis.figures import FIGURES, draw, draw_all
from analysis.figures.axes import FEWEST_ALLOWED, MAX_TICKS, MIN_TICKS, log_axis, nice_ticks, plain_labels
from analysis.figures.base import NotDrawn, read_data
from analysis.figures.law_curves import curve_with_band, read_fit
from analysis.figures.style import GRID, INK, MUTED, PAPER, as_bytes, new_figure, palette_of, settle, styled
from analysis.study import Study
from tests.analysis.pictures import overlaps, pdf_text, streams
from tests.analysis.planted import ARMS, plan_throughput, planted, planted_study, write_study

PHASE_ONE = (
    *("loss_curves", "multiplier_by_axis", "multiplier_by_compute", "paired_differences", "scaling_curves"),
)


def analyse(folder: Path, *options: str) -> Study:
    """Every stage up to the figures."""
    assert main(["fits", "--study", str(folder)]) == 0
    assert main(["multipliers", "--study", str(folder), *options]) == 0
    draw_all(Study(folder))
    return Study(folder)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two arms, one of which costs compute: losses and differences of both signs."""
    folder = planted_study(tmp_path_factory.mktemp("figures"), compute_multiplier=(1.25, 0.9), overhead=0.02)
    return analyse(folder)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Four arms with long labels, eight sizes, a lost size, a difference that was allowed, a wall clock."""
    folder = tmp_path_factory.mktemp("crowded")
    arms = (*ARMS, "block_attnres[num_blocks=16,boundaries=12345678]")
    made = planted(compute_multiplier=(1.0, 0.9, 1.1), sizes=8, seeds=2, arms=arms, noise=0.005, range=300)
    for row in made.rows:
        if row["variant"] == ARMS[2] and row["depth"] == 9:
            lost = dict.fromkeys(("val_loss", "val_loss_se", "train_loss", "val_bits_per_byte"))
            row.update(lost, status="diverged", failed_at_step=99, excluded=True, exclusion_reason="diverged")
        if row["variant"] == ARMS[1] and row["depth"] == 3:
            row["seq_len"] = 64
    write_study(folder, made)
    plan_throughput(folder, arms[1:], 0.9, 0.88, 0.92)
    return analyse(folder, "--allow", "seq_len")


def drawn(study: Study, name: str) -> Canvas:
    """The figure as it is saved, from its data file."""
    table = read_data(study.folder / "figures" / f"{name}.csv")
    figure = FIGURES.get(name)().draw(table, palette_of(study.plan.arms, study.plan.baseline))
    settle(figure)
    return figure


def digest(study: Study) -> dict[str, str]:
    folder = study.folder / "figures"
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_every_figure_of_the_first_report_is_registered() -> None:
    assert set(PHASE_ONE) <= set(FIGURES)


def test_each_figure_has_its_data_beside_it(study: Study) -> None:
    for name in FIGURES:
        files = {path.suffix for path in (study.folder / "figures").glob(f"{name}.*")}
        assert files in ({".svg", ".pdf", ".png", ".csv"}, set()), name
        assert files or name not in PHASE_ONE


def test_p01_losses_within_a_decade_have_plain_labels() -> None:
    with styled():
        figure = new_figure(3.4, 2.4)
        axes = figure.subplots()
        axes.plot([1, 2], [2.61, 2.74])
        log_axis(axes, "y", 2.61, 2.74)
        settle(figure)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) >= 3
    assert all(re.fullmatch(r"\d+\.\d+", label) for label in labels)
    assert len(axes.yaxis.get_minorticklocs()) == 0


@given(st.floats(1e-6, 1e6), st.floats(1e-4, 20.0), st.integers(FEWEST_ALLOWED, MAX_TICKS))
def test_p01_ticks_are_round_few_and_told_apart(low: float, ln_range: float, most: int) -> None:
    high = low * math.exp(ln_range)
    ticks = nice_ticks(low, high, most)
    assert MIN_TICKS <= len(ticks) <= most
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in ticks)
    labels = plain_labels(ticks)
    assert len(set(labels)) == len(labels)
    assert not any(letter in "".join(labels) for letter in "e×$")
    assert np.allclose([float(label) for label in labels], ticks, rtol=1e-6)


@pytest.mark.parametrize("name", PHASE_ONE)
def test_p01_logarithmic_axes_of_all_figures_have_three_labels(study: Study, name: str) -> None:
    with styled():
        figure = drawn(study, name)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                low, high = sorted(axis.get_view_interval())
                inside = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
                assert len(inside) >= 3
                assert not any(letter in t.label1.get_text() for t in inside for letter in "e^×$")


def test_p02_p04_bytes_are_the_same_elsewhere(study: Study, tmp_path: Path) -> None:
    """Another process, another hash seed, later, and a user whose own settings ask for a missing font."""
    before = digest(study)
    settings = tmp_path / "matplotlibrc"
    settings.write_text("font.family: Times New Roman\npdf.fonttype: 3\nlines.linewidth: 9\n")
    program = (
        "import sys; from pathlib import Path; from analysis.figures import draw_all; "
        "from analysis.study import Study; draw_all(Study(Path(sys.argv[1])), ['scaling_curves', 'paired_differences'])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(study.folder)],
        cwd=root, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONHASHSEED": "7", "MATPLOTLIBRC": str(settings),
             "OMP_NUM_THREADS": "1", "TZ": "Asia/Tokyo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "findfont" not in done.stderr
    assert digest(study) == before


@pytest.mark.parametrize("name", PHASE_ONE)
def test_p03_no_type_3_fonts(study: Study, name: str) -> None:
    data = (study.folder / "figures" / f"{name}.pdf").read_bytes()
    text = b"".join([data, *streams(data)])
    assert b"/Type3" not in text
    assert b"/FontFile2" in text


def test_p04_fonts_come_with_matplotlib(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "matplotlib.font_manager"):
        draw(study, "scaling_curves")
    assert not caplog.records
    for name in PHASE_ONE:
        data = (study.folder / "figures" / f"{name}.pdf").read_bytes()
        fonts = set(re.findall(rb"/BaseFont /(?:[A-Z]{6}\+)?([A-Za-z-]+)", b"".join([data, *streams(data)])))
        assert fonts
        assert all(font.startswith(b"DejaVuSans") for font in fonts), fonts


@pytest.mark.parametrize("name", PHASE_ONE)
def test_p05_legend_and_data_of_an_arm_have_one_colour(study: Study, name: str) -> None:
    palette = palette_of(study.plan.arms, study.plan.baseline)
    root = ElementTree.fromstring((study.folder / "figures" / f"{name}.svg").read_text())
    arm_of = {cell.spec_id: palette[cell.variant].index for cell in study.plan.cells}
    styles = list(palette.values())
    seen = set()
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        identity = group.attrib.get("id", "")
        if identity.startswith("legend-"):
            index = int(identity.removeprefix("legend-"))
        elif identity.startswith("run-"):
            index = arm_of[identity.removeprefix("run-")]
        else:
            continue
        seen.add((identity.partition("-")[0], index))
        used = set(re.findall(r"#[0-9a-f]{6}", " ".join(e.attrib.get("style", "") for e in group.iter())))
        assert used <= {styles[index].colour, PAPER}, (identity, used)
        assert styles[index].colour in used
    legends = {index for kind, index in seen if kind == "legend"}
    assert legends
    colours = {style.colour for style in styles}
    everything = set(re.findall(r"#[0-9a-f]{6}", ElementTree.tostring(root, encoding="unicode")))
    assert everything & colours == {styles[index].colour for index in legends}
    assert everything <= colours | {INK, MUTED, GRID, PAPER, "#000000"}


def test_p05_arms_are_told_apart_in_grey() -> None:
    styles = list(palette_of([f"arm{i}" for i in range(12)], "arm0").values())
    assert len({style.marker for style in styles}) == len(styles)
    grey = [lightness(style.colour) for style in styles[:4]]
    assert all(abs(a - b) > 10 for a, b in itertools.combinations(grey, 2)), grey
    for style in styles:
        assert contrast(style.colour, PAPER) > 1.9
        assert contrast(style.dark_colour, "#12161c") > 3


def lightness(colour: str) -> float:
    """CIE L* of an sRGB colour."""
    y = luminance(colour)
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", PHASE_ONE)
@pytest.mark.parametrize("which", ["study", "crowded"])
def test_p06_no_text_overlaps_or_leaves_the_canvas(
    name: str, which: str, request: pytest.FixtureRequest
) -> None:
    with styled():
        figure = drawn(request.getfixturevalue(which), name)
        assert not overlaps(figure)


def test_p06_the_check_sees_an_overlap() -> None:
    with styled():
        figure = new_figure(3.4, 2.4)
        figure.text(0.5, 0.5, "one")
        figure.text(0.51, 0.5, "other")
        figure.text(0.99, 0.2, "outside")
        settle(figure)
        assert len(overlaps(figure)) == 2


def test_p08_minus_signs_reach_the_pdf(study: Study) -> None:
    with styled():
        figure = drawn(study, "paired_differences")
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        data = as_bytes(figure, "pdf")
    assert any("\N{MINUS SIGN}" in label for label in labels)
    assert "\N{MINUS SIGN}" in pdf_text(data)


def test_a_figure_can_be_drawn_from_its_data_file_alone(study: Study) -> None:
    folder = study.folder / "figures"
    for name in PHASE_ONE:
        with styled():
            figure = FIGURES.get(name)().draw(
                read_data(folder / f"{name}.csv"), palette_of(study.plan.arms, study.plan.baseline)
            )
            settle(figure)
            assert as_bytes(figure, "svg") == (folder / f"{name}.svg").read_bytes(), name


def test_a_figure_without_data_says_why_and_leaves_no_stale_file(tmp_path: Path) -> None:
    study = Study(planted_study(tmp_path, curves=False))
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "loss_curves.svg").write_text("old")
    one = draw(study, "loss_curves")
    assert not one.exists
    assert one.missing == "needs curves.parquet"
    assert list((tmp_path / "figures").iterdir()) == []
    with pytest.raises(NotDrawn):
        FIGURES.get("loss_curves")().table(study)


def test_the_gap_drawn_is_the_multiplier_of_the_table(study: Study) -> None:
    table = (
        read_data(study.folder / "figures" / "scaling_curves.csv").query("item == 'gap'").set_index("variant")
    )
    headline = study.multipliers.query(
        "estimator == 'pair_slope' and compute_axis == 'exact' and rate == 'matched'"
    ).set_index("variant")
    for arm in ARMS[1:]:
        for name in ("compute_multiplier", "lo", "hi", "verdict"):
            assert table.loc[arm, name] == headline.loc[arm, name]


def test_the_band_of_a_power_law_is_the_band_of_a_straight_line(study: Study) -> None:
    """ln loss of a power law is linear in ln compute: its standard error has a textbook formula."""
    fit = read_fit(study, "power_law", ARMS[0])
    assert fit is not None
    used = study.cells.query("variant == @ARMS[0]").groupby("compute")["val_loss"].agg(["mean", "size"])
    x, y, w = (
        np.log(used.index.to_numpy(float)),
        np.log(used["mean"].to_numpy(float)),
        used["size"].to_numpy(float),
    )
    design = np.stack([np.ones_like(x), x], axis=1)
    normal = np.linalg.inv(design.T @ (w[:, None] * design))
    rest = y - design @ (normal @ design.T @ (w * y))
    sigma2 = float((w * rest**2).sum() / (len(x) - 2))
    at = np.geomspace(used.index.min(), used.index.max(), 7)
    rows = np.stack([np.ones(7), np.log(at)], axis=1)
    sd = np.sqrt(sigma2 * np.einsum("ni,ij,nj->n", rows, normal, rows))
    loss, lo, hi = curve_with_band(fit, at)
    t975 = 3.182446305284263  # Student's t, 3 degrees of freedom
    assert np.allclose(np.log(hi / loss), t975 * sd, rtol=1e-3)
    assert np.allclose(np.log(loss / lo), t975 * sd, rtol=1e-3)


def test_the_band_of_a_saturating_law_stays_narrow_within_its_data(tmp_path: Path) -> None:
    """Parameters are written by name, their covariance in the form's order: mixed up, the band explodes."""
    folder = planted_study(tmp_path, irreducible=1.0, exponent=0.15, sizes=7, noise=0.002, range=100)
    from analysis.fits import write_fits

    study = Study(folder)
    write_fits(study)
    fit = read_fit(study, "saturating", ARMS[0])
    assert fit is not None
    assert fit.parameters["E"] > 0
    compute = np.geomspace(*fit.range["compute"], 9)
    loss, lo, hi = curve_with_band(fit, compute)
    assert (lo < loss).all()
    assert (loss < hi).all()
    assert ((hi - lo) / loss < 0.05).all()


def test_w12_s15_counts_and_differences_stand_in_the_figure(crowded: Study) -> None:
    with styled():
        figure = drawn(crowded, "scaling_curves")
    small = " ".join(" ".join(text.get_text().split()) for text in figure.findobj(Text))
    assert "62 of 64 planned runs; left out: 2 diverged" in small
    assert "seq_len differs in 2 of 16 pairs: 64 (030096000001) against 128 (030096000000)" in small
    assert "unequal coverage: full_attnres lacks d9w288 seed 0 (diverged)" in small
