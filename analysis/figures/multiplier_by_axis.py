"""The headline multiplier under every way to count compute."""

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.comparison import HEADLINE, MATCHED
from analysis.figures.axes import log_axis
from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.marks import arm_legend, interval
from analysis.figures.style import COLUMN, INK, MUTED, PAPER, Palette, new_figure
from analysis.study import MULTIPLIERS_FILE, Study

AXIS_WORDS = {
    "exact": "all training FLOPs",
    "6nd": "6ND, sublayers + stream",
    "6nd_total": "6ND, all parameters",
    "no_head": "without the head",
    "tokens": "equal tokens",
    "wall": "wall-clock",
}
"""Compute axes in words."""


@FIGURES.register("multiplier_by_axis")
class MultiplierByAxis(Figure[Study]):
    """Forest plot: one row a compute axis, one interval an arm."""

    title = "The multiplier under each way to count compute"
    needs = ("plan.json", MULTIPLIERS_FILE)
    rank = 2

    def table(self, source: Study) -> pd.DataFrame:
        """Rows of multipliers.csv: headline estimator, matched rates."""
        table = source.multipliers
        shown = table[
            (table["estimator"] == HEADLINE)
            & (table["rate"] == MATCHED)
            & table["variant"].isin([arm for arm in source.plan.arms if arm != source.plan.baseline])
        ]
        if len(shown) == 0:
            raise NotDrawn("no arm besides the baseline")
        if shown["compute_multiplier"].isna().all():
            raise NotDrawn(str(shown["status"].iloc[0]).removeprefix("refused: "))
        return shown[["compute_axis", "variant", "compute_multiplier", "lo", "hi", "verdict", "status"]]

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Axes from top to bottom, arms dodged within them; a refusal stands where its interval would."""
        rows = list(dict.fromkeys(table["compute_axis"]))
        arms = [arm for arm in palette if arm in set(table["variant"])]
        figure = new_figure(COLUMN, 0.75 + len(rows) * (0.14 + 0.13 * len(arms)))
        axes = figure.subplots()
        known = table.dropna(subset=["compute_multiplier"])
        ends = [1.0, *known["lo"].dropna(), *known["hi"].dropna(), *known["compute_multiplier"]]
        log_axis(axes, "x", min(ends), max(ends), most=6)
        axes.axvline(1.0, color=MUTED, linewidth=0.7)
        for k, axis in enumerate(rows):
            own = table[table["compute_axis"] == axis].set_index("variant")
            if own["compute_multiplier"].isna().all():
                reason = str(own["status"].iloc[0]).removeprefix("refused: ").partition(":")[0]
                axes.text(0.5, -k, reason, transform=axes.get_yaxis_transform(), ha="center", va="center",
                          fontsize=6.0, color=INK, style="italic",
                          bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6})  # fmt: skip
                continue
            for i, arm in enumerate(arms):
                row = own.loc[arm]
                y = -k + 0.62 * (0.5 - (i + 0.5) / len(arms))
                if pd.notna(row["compute_multiplier"]):
                    interval(axes, row["compute_multiplier"], row["lo"], row["hi"], y, palette[arm])
        axes.set_yticks([-k for k in range(len(rows))], [AXIS_WORDS.get(axis, axis) for axis in rows])
        axes.set_ylim(-len(rows) + 0.5, 0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("compute multiplier")
        arm_legend(figure, palette, arms, line=False)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """What is drawn, with the refusals."""
        refused = table[table["compute_multiplier"].isna()]
        axes_of: dict[str, list[str]] = {}
        for axis, status in zip(refused["compute_axis"], refused["status"], strict=True):
            words = AXIS_WORDS.get(axis, axis)
            reason = str(status).removeprefix("refused: ")
            if words not in axes_of.setdefault(reason, []):
                axes_of[reason].append(words)
        missing = "; ".join(f"{', '.join(axes)} ({reason})" for reason, axes in axes_of.items())
        return (
            "Headline multiplier with its interval for each convention of counting compute; a mark right of "
            f"1 saves compute. {'No number: ' + missing + '.' if missing else ''}"
        ).strip()
