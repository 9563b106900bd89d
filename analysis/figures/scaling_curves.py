"""Loss against compute: runs, fitted laws, and the compute multiplier as the gap between them."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.comparison import MATCHED
from analysis.figures.axes import log_axis, scale_of
from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.law_curves import curve_with_band, read_fit
from analysis.figures.marks import arm_legend, interval, note_below, run_points, words
from analysis.figures.style import COLUMN, INK, MUTED, Palette, new_figure
from analysis.headline import headline_of, pairs_behind
from analysis.plan_file import LADDER_ROLES
from analysis.study import Study

_POINTS = 61


@FIGURES.register("scaling_curves")
class ScalingCurves(Figure[Study]):
    """Points of every run, the fitted laws with their bands, the headline multiplier as a horizontal gap."""

    title = "Loss against compute"
    needs = ("plan.json", "runs.csv", "multipliers.csv")
    rank = 0

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: point and left_out (runs), curve (a fitted law), gap (the multiplier of an arm)."""
        rows = _runs(source)
        used = [row for row in rows if row["item"] == "point"]
        if not used:
            raise NotDrawn("no finished run of the ladder")
        compute = np.array([row["compute"] for row in used])
        form = _common_form(source)
        grid = np.geomspace(compute.min(), compute.max(), _POINTS)
        for arm in source.plan.arms if form else ():
            rows += _curve(source, form, arm, grid)
        arms = [arm for arm in source.plan.arms if arm != source.plan.baseline]
        for i, arm in enumerate(arms):
            share = (i + 1) / (len(arms) + 1)
            at = float(compute.min() ** (1 - share) * compute.max() ** share)
            rows.append(_gap(source, form, arm, at))
        rows += [
            {"item": "note", "variant": arm, "reason": note}
            for (arm, _), pairs in pairs_behind(source, [(arm, MATCHED) for arm in arms]).items()
            for note in pairs.notes
        ]
        columns = ["item", "variant", "size", "seed", "spec_id", "compute", "loss", "lo", "hi", "form"]
        columns += ["compute_multiplier", "verdict", "reason"]
        return pd.DataFrame(rows, columns=columns)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Above: losses. Below: the multiplier of each arm with its interval and verdict."""
        gaps = table[table["item"] == "gap"]
        arms = list(dict.fromkeys(table["variant"]))
        figure = new_figure(COLUMN, 2.6 + 0.14 * len(arms) + 0.48 * len(gaps))
        upper, lower = figure.subplots(2, 1, height_ratios=(2.0, 0.46 * len(gaps)))
        scale, unit = scale_of(table.loc[table["item"] == "point", "compute"])
        _draw_losses(upper, table, palette, scale)
        upper.set_xlabel(f"training compute ({unit} FLOPs)")
        upper.set_ylabel("validation loss (nats/token)")
        _draw_gaps(lower, gaps, palette)
        arm_legend(figure, palette, arms)
        notes = table[table["item"] == "note"]
        written = [f"{arm}: {note}" for arm, note in zip(notes["variant"], notes["reason"], strict=True)]
        note_below(figure, [_count(table), *written])
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """What is drawn, with its counts."""
        forms = sorted(set(table.loc[table["item"] == "curve", "form"]))
        laws = f" Lines: {', '.join(forms)} fits with pointwise 95 % bands." if forms else " No law is drawn."
        return (
            "Validation loss at the end of each run against the training compute of its own arm "
            f"(overhead included); {_count(table)}.{laws} Arrows: the compute multiplier of the headline as "
            "the horizontal gap, its interval at the tip; below, the same with its verdict."
        )


def _runs(study: Study) -> list[dict[str, Any]]:
    cells = study.cells
    ladder = cells[cells["role"].isin(LADDER_ROLES)].sort_values(["variant", "budget", "size", "seed"])
    return [
        {
            "item": "left_out" if run["excluded"] else "point",
            "variant": run["variant"],
            "size": run["size"],
            "seed": run["seed"],
            "spec_id": run["spec_id"],
            "compute": run["compute"],
            "loss": run["val_loss"],
            "reason": run["exclusion_reason"] if run["excluded"] else "",
        }
        for run in ladder.to_dict("records")
    ]


def _common_form(study: Study) -> str:
    """The headline's form if every arm has a usable fit of it, else the power law, else none."""
    wanted = [headline_of(study, arm).form for arm in study.plan.arms if arm != study.plan.baseline]
    for form in dict.fromkeys([*(w for w in wanted if w and w != "none"), "power_law"]):
        fits = [read_fit(study, form, arm) for arm in study.plan.arms]
        if all(fit is not None and fit.usable for fit in fits):
            return form
    return ""


def _curve(study: Study, form: str, arm: str, grid: np.ndarray) -> list[dict[str, Any]]:
    fit = read_fit(study, form, arm)
    assert fit is not None  # _common_form checked it
    loss, lo, hi = curve_with_band(fit, grid)
    return [
        {"item": "curve", "variant": arm, "form": form, "compute": c, "loss": y, "lo": a, "hi": b}
        for c, y, a, b in zip(grid, loss, lo, hi, strict=True)
    ]


def _gap(study: Study, form: str, arm: str, at: float) -> dict[str, Any]:
    headline = headline_of(study, arm)
    row: dict[str, Any] = {"item": "gap", "variant": arm, "form": headline.form, "verdict": headline.verdict}
    row |= {
        "compute_multiplier": headline.value,
        "lo": headline.lo,
        "hi": headline.hi,
        "reason": headline.reason,
    }
    fit = read_fit(study, form, arm) if form else None
    if fit is not None and headline.value is not None:
        row |= {"compute": at, "loss": float(curve_with_band(fit, np.array([at]))[0][0])}
    return row


def _count(table: pd.DataFrame) -> str:
    used, lost = table[table["item"] == "point"], table[table["item"] == "left_out"]
    reasons = lost["reason"].value_counts().sort_index()
    left = (
        "; left out: " + ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        if len(lost)
        else ""
    )
    return f"{len(used)} of {len(used) + len(lost)} planned runs{left}"


def _draw_losses(axes: Axes, table: pd.DataFrame, palette: Palette, scale: float) -> None:
    points, curves = table[table["item"] == "point"], table[table["item"] == "curve"]
    for arm, style in palette.items():
        curve = curves[curves["variant"] == arm]
        if len(curve):
            x = curve["compute"] / scale
            axes.fill_between(
                x, curve["lo"], curve["hi"], color=style.colour, alpha=0.13, linewidth=0, zorder=1
            )
            axes.plot(
                x,
                curve["loss"],
                color=style.colour,
                linestyle=style.dash,
                zorder=2,
                gid=f"curve-{style.index}",
            )
        for point in points[points["variant"] == arm].to_dict("records"):
            run_points(axes, point["compute"] / scale, point["loss"], style, point["spec_id"])
    gaps = table[(table["item"] == "gap") & table["compute"].notna()]
    for gap in gaps.to_dict("records"):
        _draw_arrow(axes, gap, scale)
    log_axis(axes, "x", points["compute"].min() / scale, points["compute"].max() / scale, margin=0.06)
    log_axis(axes, "y", points["loss"].min(), points["loss"].max(), margin=0.08)


def _draw_arrow(axes: Axes, gap: Mapping[Hashable, Any], scale: float) -> None:
    x, y, m = gap["compute"] / scale, gap["loss"], gap["compute_multiplier"]
    axes.plot(
        [x * gap["lo"], x * gap["hi"]],
        [y, y],
        color=INK,
        linewidth=3.0,
        alpha=0.25,
        solid_capstyle="butt",
        zorder=5,
    )
    arrow = {
        "arrowstyle": "-|>,head_length=0.25,head_width=0.12",
        "color": INK,
        "linewidth": 0.8,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", xy=(x * m, y), xytext=(x, y), arrowprops=arrow, zorder=6)
    axes.annotate(
        f"{m:.2f}×", xy=(x * max(m, gap["hi"], 1.0), y), xytext=(2, 1), textcoords="offset points",
        ha="left", va="bottom", fontsize=6.5, zorder=6,
    )  # fmt: skip


def _draw_gaps(axes: Axes, gaps: pd.DataFrame, palette: Palette) -> None:
    known = gaps[gaps["compute_multiplier"].notna()]
    ends = [1.0, *known["lo"].dropna(), *known["hi"].dropna(), *known["compute_multiplier"]]
    log_axis(axes, "x", min(ends), max(ends), most=6, margin=0.08)
    axes.axvline(1.0, color=MUTED, linewidth=0.7)
    for i, gap in enumerate(gaps.to_dict("records")):
        number, verdict = _words(gap)
        words(axes, 0.01, -i, number)
        words(axes, 0.01, -i - 0.3, verdict, muted=True)
        if not np.isnan(gap["compute_multiplier"]):
            interval(axes, gap["compute_multiplier"], gap["lo"], gap["hi"], -i - 0.6, palette[gap["variant"]])
    axes.set_ylim(-len(gaps) + 0.2, 0.25)
    if len(known) == 0:
        axes.set_axis_off()
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel("compute multiplier")


_LONGEST_NAME = 38
"""Letters of an arm's label that leave room for its number in a column."""


def _words(gap: Mapping[Hashable, Any]) -> tuple[str, str]:
    """Number and verdict, or the reason why there is none."""
    name = str(gap["variant"])
    name = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    if np.isnan(gap["compute_multiplier"]):
        return f"{name} no number", str(gap["reason"]).partition(":")[0]
    return f"{name} {gap['compute_multiplier']:.2f} [{gap['lo']:.2f}, {gap['hi']:.2f}]", gap["verdict"]
