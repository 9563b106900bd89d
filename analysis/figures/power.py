"""What more seeds would resolve: the power of this study's design, with the noise it measured."""

from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.marks import arm_legend
from analysis.figures.style import COLUMN, MUTED, PAPER, Palette, new_figure
from analysis.pilot import design_of_pilot
from analysis.power import expected
from analysis.study import MULTIPLIERS_FILE, Study
from attnres.errors import UserError

MOST_SEEDS = 10
TRUE_MULTIPLIERS = (1.05, 1.25)
WANTED = 0.8


@FIGURES.register("power")
class Power(Figure[Study]):
    """Chance to tell a true multiplier from 1, against the seeds of every size."""

    title = "Power of further seeds"
    needs = ("plan.json", "runs.csv", MULTIPLIERS_FILE)
    rank = 5

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: arm whose pairs measured the noise, true multiplier, seeds, power, expected interval."""
        rows: list[dict[str, Any]] = []
        for arm in source.plan.arms:
            if arm == source.plan.baseline:
                continue
            try:
                design = design_of_pilot(source, arm)
            except UserError:
                continue  # its headline was refused: multipliers.csv has the reason
            for m in TRUE_MULTIPLIERS:
                for seeds in range(1, MOST_SEEDS + 1):
                    found = expected(replace(design, num_seeds=seeds), m)
                    rows.append(
                        {"variant": arm, "compute_multiplier": m, "seeds": seeds, "power": found.power}
                        | {"lo": found.lo, "hi": found.hi, "num_sizes": design.num_sizes}
                    )
        if not rows:
            raise NotDrawn("no arm has a headline to learn the noise from")
        return pd.DataFrame(rows)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """One line an arm; a panel for each true multiplier."""
        arms = [arm for arm in palette if arm in set(table["variant"])]
        figure = new_figure(COLUMN, 1.9 + 0.14 * len(arms))
        panels = figure.subplots(1, len(TRUE_MULTIPLIERS), sharey=True)
        for axes, m in zip(panels, TRUE_MULTIPLIERS, strict=True):
            axes.axhline(WANTED, color=MUTED, linewidth=0.7)
            for arm in arms:
                own = table[(table["variant"] == arm) & (table["compute_multiplier"] == m)]
                style = palette[arm]
                axes.plot(
                    own["seeds"], own["power"], color=style.colour, linestyle=style.dash, marker=style.marker,
                    markersize=3, markeredgecolor=PAPER, markeredgewidth=0.3,
                )  # fmt: skip
            axes.set_title(f"true multiplier {m:g}")
            axes.set_ylim(0, 1.04)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            axes.set_xlabel("seeds of every size")
        panels[0].set_ylabel("power against 1")
        arm_legend(figure, palette, arms)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """What the design resolves with one seed."""
        single = table[table["seeds"] == 1]
        sizes = int(table["num_sizes"].max())
        words = [
            f"{row['variant']}, {row['compute_multiplier']:g}: {row['power'] * 100:.0f} %"
            for row in single.to_dict("records")
        ]
        return (
            f"Chance that the 95 % interval of a study of {sizes} sizes excludes 1, by "
            "the noise and slope that this study measured in the pairs of each arm (noncentral t). With one "
            f"seed: {'; '.join(words)}. Line: {WANTED * 100:g} %."
        )
