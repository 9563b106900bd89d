"""Claimed, re-analysed, replicated elsewhere, measured here: every multiplier on one axis."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.compute_axes import EXACT
from analysis.figures.axes import log_axis
from analysis.figures.base import Figure
from analysis.figures.style import INK, MUTED, PAGE, PAPER, Palette, new_figure
from analysis.paper.figures.base import PAPER_FIGURES
from analysis.paper.numbers import Numbers
from analysis.published.attnres_scaling import CLAIM, VARIANTS

GROUPS = {"claimed": "o", "re-analysed": "s", "elsewhere": "^", "here": "D"}


@PAPER_FIGURES.register("side_by_side")
class SideBySide(Figure[Numbers]):
    """One row a multiplier; open ends where there is no interval."""

    title = "Claimed, re-analysed, replicated elsewhere, measured here"
    needs = ()
    rank = 0

    def table(self, source: Numbers) -> pd.DataFrame:
        """Rows: group, label, multiplier, interval where there is one."""
        rows = [
            _row(
                "claimed",
                f"Block at {CLAIM.compute_pflops_days:g} PFLOP/s-days, as stated",
                CLAIM.compute_multiplier,
            )
        ]
        rows += [
            _of("re-analysed", f"{variant}, Table 2, C = 6ND", source.answer(variant)) for variant in VARIANTS
        ]
        rows += [
            _of("elsewhere", f"{r['variant']}, {r['source'].split()[0]}, 5 sizes", r)
            for r in source.elsewhere
        ]
        rows += [
            _row(
                "elsewhere",
                f"{r['variant']}, {r['source']}, {r['setting'].split(',')[0]}",
                r["compute_multiplier"],
            )
            for r in source.marin
        ]
        rows += [
            _of("here", f"{r['variant']}, {r['study']}", r)
            for r in source.here
            if r["compute_axis"] == EXACT and r["compute_multiplier"] is not None
        ]
        return pd.DataFrame(rows)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:  # noqa: ARG002 (one colour)
        """Labels left, intervals right, groups apart."""
        figure = new_figure(PAGE, 0.6 + 0.19 * len(table) + 0.1 * len(GROUPS))
        axes = figure.subplots()
        ends = [1.0, *table["compute_multiplier"], *table["lo"].dropna(), *table["hi"].dropna()]
        log_axis(axes, "x", min(ends), max(ends))
        axes.axvline(1.0, color=MUTED, linewidth=0.7)
        places, labels, y = [], [], 0.0
        for group, rows in table.groupby("group", sort=False):
            for row in rows.to_dict("records"):
                axes.plot([row["lo"], row["hi"]], [y, y], color=INK, linewidth=1.3)
                axes.plot(
                    [row["compute_multiplier"]], [y], marker=GROUPS[str(group)], color=INK, linestyle="none",
                    markerfacecolor=INK if row["lo"] == row["lo"] else PAPER,
                )  # fmt: skip
                places.append(y)
                labels.append(f"{group}: {row['label']}")
                y -= 1
            y -= 0.5
        axes.set_yticks(places, labels)
        axes.set_ylim(y + 0.9, 0.7)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("compute multiplier")
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """What the marks mean, and how many rows have an interval."""
        known = int(table["lo"].notna().sum())
        return (
            f"{len(table)} multipliers, {known} with an interval (95 %); open marks have none. Those from "
            "elsewhere with an interval were computed here from published losses, the others follow their "
            "authors' own formula."
        )


def _row(group: str, label: str, value: float, lo: Any = None, hi: Any = None) -> dict[str, Any]:
    return {"group": group, "label": label, "compute_multiplier": value, "lo": lo, "hi": hi}


def _of(group: str, label: str, row: dict[str, Any]) -> dict[str, Any]:
    return _row(group, label, row["compute_multiplier"], row["lo"], row["hi"])
