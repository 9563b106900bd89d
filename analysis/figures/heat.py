"""Heat maps as vectors: cells that were not measured are blank, values may be written into them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.figures.style import GRID, INK, PAPER


def heat_map(
    axes: Axes,
    values_RC: NDArray[np.float64],
    low: float,
    high: float,
    *,
    text: str = "",
    marked: tuple[int, int] | None = None,
    reverse: bool = False,
) -> QuadMesh:
    """Rows from the top; NaN cells show the hatched ground, which no colour looks like in grey either.

    Args:
        axes: the panel.
        values_RC: rows x columns.
        low: value of the first colour.
        high: value of the last.
        text: format of the values written into the cells; "" for none.
        marked: row and column of a star.
        reverse: dark for low values.
    """
    cells = np.ma.masked_invalid(values_RC)
    mesh = axes.pcolormesh(
        cells, vmin=low, vmax=high, cmap="viridis_r" if reverse else "viridis", linewidth=0.25
    )
    mesh.set_edgecolor("face")  # cells overlap a little, or the ground shines through between them
    axes.set_ylim(values_RC.shape[0], 0)
    axes.patch.set(facecolor=PAPER, edgecolor=GRID, hatch="//////", linewidth=0)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    for (r, c), value in np.ndenumerate(values_RC):
        if text and np.isfinite(value):
            star = "*" if marked == (r, c) else ""
            axes.text(
                c + 0.5, r + 0.5, star + text.format(value), ha="center", va="center", fontsize=6.0,
                color=_readable(mesh, float(value)), fontweight="bold" if star else "normal",
            )  # fmt: skip
    return mesh


def _readable(mesh: QuadMesh, value: float) -> str:
    """Ink or paper, whichever stands out from the colour of ``value``."""
    red, green, blue, _ = mesh.to_rgba(np.array([value]))[0]
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45 else PAPER


def colour_bar(
    figure: Figure, mesh: QuadMesh, panels: Sequence[Axes], label: str, *, shrink: float, above: bool = False
) -> None:
    """The colours of ``panels``, as vectors: matplotlib would embed an image. ``above``: values go beyond."""
    bar = figure.colorbar(mesh, ax=list(panels), shrink=shrink, extend="max" if above else "neither")
    assert bar.solids is not None
    bar.solids.set_rasterized(False)
    bar.solids.set_edgecolor("face")
    bar.set_label(label)
    bar.outline.set_visible(False)
