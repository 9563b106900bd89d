"""Marks that figures share: the legend of the arms, a run's point, an interval with its words."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from analysis.figures.base import RUN_GID
from analysis.figures.style import INK, MUTED, PAPER, ArmStyle, Palette


def arm_legend(figure: Canvas, palette: Palette, arms: Sequence[str], *, line: bool = True) -> None:
    """One legend above all panels, arms in the palette's order; entries carry ``legend-<index>`` as id."""
    shown = [arm for arm in palette if arm in set(arms)]
    handles = [
        Line2D(
            [], [], color=palette[arm].colour, marker=palette[arm].marker, markeredgecolor=PAPER,
            markeredgewidth=0.4, linestyle=palette[arm].dash if line else "none", label=arm,
        )
        for arm in shown
    ]  # fmt: skip
    longest = max((len(arm) for arm in shown), default=0)
    columns = max(1, min(len(shown), int(figure.get_size_inches()[0] / (0.45 + 0.062 * longest))))
    legend = figure.legend(handles=handles, loc="outside upper left", ncols=columns, columnspacing=1.2)
    for handle, arm in zip(legend.legend_handles, shown, strict=True):
        if handle is not None:
            handle.set_gid(f"legend-{palette[arm].index}")


def run_points(axes: Axes, x: ArrayLike, y: ArrayLike, style: ArmStyle, spec_id: str) -> None:
    """The points of one run; their id in the SVG is ``run-<spec_id>``."""
    axes.plot(
        np.atleast_1d(x), np.atleast_1d(y), linestyle="none", marker=style.marker, color=style.colour,
        markeredgecolor=PAPER, markeredgewidth=0.4, zorder=4, gid=f"{RUN_GID}{spec_id}",
    )  # fmt: skip


def interval(
    axes: Axes, centre: float, lo: float, hi: float, y: float, style: ArmStyle, *, dodge: float = 0.0
) -> None:
    """A horizontal interval with its centre; a bound that is not known is left open."""
    axes.plot([lo, hi], [y + dodge] * 2, color=style.colour, linewidth=1.3, solid_capstyle="butt", zorder=3)
    axes.plot(
        [centre], [y + dodge], marker=style.marker, color=style.colour, markeredgecolor=PAPER,
        markeredgewidth=0.4, linestyle="none", zorder=4,
    )  # fmt: skip


def note_below(figure: Canvas, notes: Sequence[str]) -> None:
    """Small print under the panels, a paragraph a note; the figure grows by its height."""
    width, height = figure.get_size_inches()
    lines = [line for note in notes for line in textwrap.wrap(note, int(width * _LETTERS_AN_INCH))]
    figure.set_size_inches(width, height + _LINE_HEIGHT * (len(lines) - 1))
    figure.supxlabel("\n".join(lines), fontsize=6.0, color=MUTED, x=0.02, ha="left")


_LETTERS_AN_INCH, _LINE_HEIGHT = 22, 0.1
"""Of the small print (6 point): what fits into an inch, and inches a line."""


def words(axes: Axes, x: float, y: float, text: str, *, size: float = 6.0, muted: bool = False) -> None:
    """Text at axes-fraction ``x`` and data ``y``, left-aligned on its base line."""
    axes.text(
        x, y, text, transform=axes.get_yaxis_transform(), fontsize=size, color=MUTED if muted else INK,
        ha="left", va="center", bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}, zorder=2.5,
    )  # fmt: skip
