"""The largest budget predicted from the others: does the law hold where it was not fitted?"""

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.marks import arm_legend, interval
from analysis.figures.style import COLUMN, MUTED, Palette, new_figure
from analysis.study import Study


@FIGURES.register("held_out")
class HeldOut(Figure[Study]):
    """Predicted minus measured loss of the largest budget, with the prediction interval, by form and arm."""

    title = "Held-out prediction"
    needs = ("plan.json", "fits/holdout.json")
    rank = 4

    def table(self, source: Study) -> pd.DataFrame:
        """Rows of fits/holdout.json that hold a prediction."""
        rows = [row for row in source.read_fits("holdout") if row["predicted"] is not None]
        if not rows:
            raise NotDrawn("no law could be fitted without the largest budget")
        columns = ["form", "variant", "size", "measured", "predicted", "lo", "hi", "inside"]
        return pd.DataFrame(rows, columns=columns)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """One row a form, arms dodged within it; the line at 0 is what was measured."""
        forms = list(dict.fromkeys(table["form"]))
        arms = [arm for arm in palette if arm in set(table["variant"])]
        figure = new_figure(COLUMN, 0.75 + 0.14 * len(arms) + len(forms) * (0.16 + 0.15 * len(arms)))
        axes = figure.subplots()
        axes.axvline(0.0, color=MUTED, linewidth=0.7)
        for k, form in enumerate(forms):
            for i, arm in enumerate(arms):
                y = -k + 0.7 * (0.5 - (i + 0.5) / len(arms))
                for row in table[(table["form"] == form) & (table["variant"] == arm)].to_dict("records"):
                    centre, lo, hi = (row[name] - row["measured"] for name in ("predicted", "lo", "hi"))
                    interval(axes, centre, lo, hi, y, palette[arm])
        axes.set_yticks([-k for k in range(len(forms))], [form.replace("_", " ") for form in forms])
        axes.set_ylim(-len(forms) + 0.5, 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("predicted minus measured (nats/token)")
        arm_legend(figure, palette, arms, line=False)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """How many predictions hold."""
        known = table[table["inside"].notna() & (table["inside"] != "")]
        inside = int((known["inside"].astype(str) == "True").sum())
        sizes = ", ".join(dict.fromkeys(table["size"]))
        return (
            f"Loss of the largest budget ({sizes}) as each law predicts it from the others, minus the "
            f"measured one, with 95 % prediction intervals: {inside} of {len(known)} contain it."
        )
