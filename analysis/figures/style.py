"""How figures look, and how they become files: the same input gives the same bytes.

Fonts are the ones matplotlib carries (DejaVu), no LaTeX; fonts are embedded as TrueType (type 42).
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine

from attnres.files import atomic_path

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#ffffff"
COLUMN, PAGE = 3.4, 6.9
"""Widths of one and two columns, inches."""

RC: Any = {
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "text.usetex": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.unicode_minus": True,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.0,
    "legend.frameon": False,
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 2.2,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "pdf.compression": 6,
    "svg.fonttype": "path",
    "svg.hashsalt": "attnres-scaling",
    "path.simplify": True,
    "image.cmap": "viridis",
}

_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}
FORMATS = tuple(_METADATA)


@dataclass(frozen=True)
class ArmStyle:
    """Look of one arm in every figure; no two arms share colour and marker, nor marker alone."""

    index: int
    colour: str
    dark_colour: str
    """The same hue for the report on a dark page."""
    marker: str
    dash: tuple[int, tuple[float, ...]]


# After Okabe and Ito, told apart by the common kinds of colour blindness; the first four also differ in
# lightness (L* 18, 37, 54, 71; theirs has 46 for the blue), and every arm has its own marker, for grey.
_COLOURS = (
    ("#2b2b2b", "#d6dbe1"),
    ("#005b99", "#5fb4ec"),
    ("#d55e00", "#ff9a4d"),
    ("#e69f00", "#f6c453"),
    ("#009e73", "#45cfa4"),
    ("#a2478f", "#e093cd"),
    ("#7a5c3e", "#cfae8b"),
    ("#56b4e9", "#a7dcff"),
)
_MARKERS = (
    "o",
    "s",
    "^",
    "D",
    "v",
    "P",
    "X",
    "*",
    "<",
    ">",
    "p",
    "h",
    "8",
    "d",
    "H",
    "1",
    "2",
    "3",
    "4",
    "+",
)
_DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (4.5, 1.2),
    (1.2, 1.0),
    (5, 1, 1, 1),
    (2.5, 1),
    (6, 2),
    (3, 1, 1, 1, 1, 1),
)

Palette = dict[str, ArmStyle]


def palette_of(arms: Sequence[str], baseline: str) -> Palette:
    """Colour, marker and dash of every arm: the baseline first, then the others in the plan's order."""
    order = [baseline, *(arm for arm in dict.fromkeys(arms) if arm != baseline)]
    if len(order) > len(_MARKERS):
        raise ValueError(f"{len(order)} arms, but only {len(_MARKERS)} markers to tell them apart")
    return {
        arm: ArmStyle(i, *_COLOURS[i % len(_COLOURS)], _MARKERS[i], (0, _DASHES[i % len(_DASHES)]))
        for i, arm in enumerate(order)
    }


@contextmanager
def styled() -> Iterator[None]:
    """Everything drawn inside has the project's look, whatever the user's own settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def new_figure(width: float, height: float) -> Canvas:
    """An empty figure of ``width`` x ``height`` inches whose parts are laid out without overlap."""
    figure = Canvas(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03))
    FigureCanvasAgg(figure)
    return figure


def as_bytes(figure: Canvas, kind: str) -> bytes:
    """``figure`` in the format ``kind`` (svg, pdf, png): no date, no random id."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
    return buffer.getvalue()


def settle(figure: Canvas) -> None:
    """Lay ``figure`` out once: every format then has the same layout, and a third of the work."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def save(figure: Canvas, stem: Path) -> None:
    """Write ``figure`` as svg, pdf and png beside each other, each whole or not at all."""
    settle(figure)
    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind in FORMATS:
        with atomic_path(stem.with_name(f"{stem.name}.{kind}")) as temporary:
            temporary.write_bytes(as_bytes(figure, kind))
