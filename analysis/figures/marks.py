"""Marks that figures share: the legend of the arms, a run's point, an interval with its words."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

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


def run_point(axes: Axes, x: float, y: float, style: ArmStyle, spec_id: str, *, hollow: bool = False) -> None:
    """The point of one run; its id in the SVG is ``run-<spec_id>``."""
    (point,) = axes.plot(
        [x], [y], linestyle="none", marker=style.marker, color=style.colour,
        markerfacecolor=PAPER if hollow else style.colour,
        markeredgecolor=style.colour if hollow else PAPER, markeredgewidth=0.7 if hollow else 0.4, zorder=4,
    )  # fmt: skip
    point.set_gid(f"{RUN_GID}{spec_id}")


def interval(
    axes: Axes, centre: float, lo: float, hi: float, y: float, style: ArmStyle, *, dodge: float = 0.0
) -> None:
    """A horizontal interval with its centre; a bound that is not known is left open."""
    axes.plot([lo, hi], [y + dodge] * 2, color=style.colour, linewidth=1.3, solid_capstyle="butt", zorder=3)
    axes.plot(
        [centre], [y + dodge], marker=style.marker, color=style.colour, markeredgecolor=PAPER,
        markeredgewidth=0.4, linestyle="none", zorder=4,
    )  # fmt: skip


def note_below(figure: Canvas, text: str) -> None:
    """A line of small print under the panels."""
    figure.supxlabel(text, fontsize=6.0, color=MUTED, x=0.02, ha="left")


def words(axes: Axes, x: float, y: float, text: str, *, size: float = 6.5, muted: bool = False) -> None:
    """Text at axes-fraction ``x`` and data ``y``, left-aligned on its base line."""
    axes.text(
        x, y, text, transform=axes.get_yaxis_transform(), fontsize=size, color=MUTED if muted else INK,
        ha="left", va="center", bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}, zorder=2.5,
    )  # fmt: skip
