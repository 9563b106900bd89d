"""Does the multiplier change with compute? Under every way to count it."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.comparison import HEADLINE, MATCHED
from analysis.compute_axes import EXACT
from analysis.figures.axes import log_axis, scale_of
from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.marks import arm_legend
from analysis.figures.multiplier_by_axis import AXIS_WORDS
from analysis.figures.style import MUTED, PAGE, PAPER, Palette, new_figure
from analysis.study import MULTIPLIERS_FILE, Study


@FIGURES.register("multiplier_by_compute")
class MultiplierByCompute(Figure[Study]):
    """One panel a compute axis: the headline as a band, the estimators that let it vary as points."""

    title = "The multiplier against compute"
    needs = ("plan.json", "runs.csv", MULTIPLIERS_FILE, "fits/pairs.json")
    rank = 3

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: headline (constant), at (an estimator's answer at one compute), size (exact axis)."""
        known = source.multipliers[source.multipliers["rate"] == MATCHED].dropna(
            subset=["compute_multiplier"]
        )
        known = known[known["variant"].isin([arm for arm in source.plan.arms if arm != source.plan.baseline])]
        pairs = pd.DataFrame(source.read_fits("pairs"))
        rows: list[dict[str, Any]] = []
        for row in known.to_dict("records"):
            facts = {
                name: row[name] for name in ("compute_axis", "variant", "estimator", "compute_multiplier")
            }
            facts |= {"lo": row["lo"], "hi": row["hi"]}
            if row["estimator"] == HEADLINE:
                rows.append({"item": "headline", **facts})
            elif not math.isnan(row["at"]):
                rows.append({"item": "at", **facts, "compute": row["at"]})
        if not rows or len(pairs) == 0:
            raise NotDrawn("no multiplier was found")
        for pair in pairs.to_dict("records"):
            if pair["compute_multiplier"] is not None:
                facts = {"compute_axis": EXACT, "variant": pair["variant"], "estimator": HEADLINE}
                m = {"compute": pair["compute_variant"], "compute_multiplier": pair["compute_multiplier"]}
                rows.append({"item": "size", **facts, **m})
        columns = [
            "item",
            "compute_axis",
            "variant",
            "estimator",
            "compute",
            "compute_multiplier",
            "lo",
            "hi",
        ]
        return pd.DataFrame(rows, columns=columns)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Axes in the order of multipliers.csv; all panels share the multiplier's axis."""
        shown = list(dict.fromkeys(table["compute_axis"]))
        columns = min(3, len(shown))
        rows = math.ceil(len(shown) / columns)
        figure = new_figure(PAGE, 0.5 + 1.75 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        ends = [1.0, *table["lo"].dropna(), *table["hi"].dropna(), *table["compute_multiplier"]]
        scale, unit = scale_of(table["compute"].dropna())
        low, high = table["compute"].min() / scale, table["compute"].max() / scale
        for panel, axis in zip(panels, shown, strict=False):
            _draw_axis(panel, table[table["compute_axis"] == axis], palette, scale)
            log_axis(panel, "x", low, high, most=6, margin=0.08)
            log_axis(panel, "y", min(ends), max(ends), most=5, margin=0.06)
            panel.set_title(AXIS_WORDS.get(axis, axis))
        for panel in panels[len(shown) :]:
            panel.set_visible(False)
        figure.supxlabel(f"compute of the arm ({unit} FLOPs)", fontsize=7.5)
        figure.supylabel("compute multiplier", fontsize=7.5)
        arm_legend(figure, palette, list(table["variant"]), line=False)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """What is a band and what is a point."""
        varying = sorted(set(table[table["item"] == "at"]["estimator"]))
        points = f"; marks with bars: {', '.join(varying)} at one compute" if varying else ""
        return (
            "Bands: the headline multiplier, constant in compute, with its interval; small marks, first "
            f"panel: the value of each size{points}. One panel for each convention of counting compute."
        )


def _draw_axis(axes: Axes, table: pd.DataFrame, palette: Palette, scale: float) -> None:
    axes.axhline(1.0, color=MUTED, linewidth=0.7)
    for arm, style in palette.items():
        own = table[table["variant"] == arm]
        for row in own[own["item"] == "headline"].to_dict("records"):
            axes.axhspan(row["lo"], row["hi"], color=style.colour, alpha=0.13, linewidth=0)
            axes.axhline(row["compute_multiplier"], color=style.colour, linestyle=style.dash, linewidth=0.9)
        sizes = own[own["item"] == "size"]
        look: dict[str, Any] = {
            "marker": style.marker,
            "color": style.colour,
            "linestyle": "none",
            "markeredgecolor": PAPER,
        }
        axes.plot(
            sizes["compute"] / scale, sizes["compute_multiplier"], markersize=3, markeredgewidth=0.3, **look
        )
        varying = own[own["item"] == "at"]
        for k, row in enumerate(varying.to_dict("records")):
            x = row["compute"] / scale * 1.06 ** (k - (len(varying) - 1) / 2)
            axes.plot([x, x], [row["lo"], row["hi"]], color=style.colour, linewidth=0.9)
            axes.plot([x], [row["compute_multiplier"]], markersize=4, markeredgewidth=0.4, **look)
