"""Logarithmic axes that a person can read: a few plain decimal labels, also within a decade."""

import math
from collections.abc import Iterable
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

MIN_TICKS, MAX_TICKS = 3, 7
FEWEST_ALLOWED = 5
"""Labels an axis must have room for: round steps double, so that six may become three, but five two."""
_STEPS = (1.0, 2.0, 2.5, 5.0)


def log_axis(
    axes: Axes, which: Literal["x", "y"], low: float, high: float, most: int = MAX_TICKS, margin: float = 0.04
) -> None:
    """Make an axis logarithmic from ``low`` to ``high`` with at least three plain decimal labels.

    Args:
        axes: the panel.
        which: axis.
        low: smallest value to show, > 0.
        high: largest.
        most: labels there is room for.
        margin: share of the range left free at either end.
    """
    low, high = _widen(low, high, margin)
    ticks = nice_ticks(low, high, most)
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter(plain_labels(ticks)))
    axis.set_minor_locator(NullLocator())


def _widen(low: float, high: float, margin: float) -> tuple[float, float]:
    if not 0 < low <= high < math.inf:
        raise ValueError(f"a logarithmic axis needs 0 < low <= high, got {low} and {high}")
    span = max(math.log(high / low), 0.02)
    middle = math.log(low * high) / 2
    half = span / 2 + margin * span
    return math.exp(middle - half), math.exp(middle + half)


def nice_ticks(low: float, high: float, most: int = MAX_TICKS) -> list[float]:
    """Round values between ``low`` and ``high``, `MIN_TICKS` to ``most`` of them.

    Over a decade or more: 1, 2, 5 times powers of ten, thinned where they are many. Below: multiples of
    the smallest round step that leaves at most ``most``.
    """
    if most < FEWEST_ALLOWED:
        raise ValueError(f"room for {most} labels cannot promise {MIN_TICKS}: {FEWEST_ALLOWED} are needed")
    if high / low >= 10:
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = _decade_ticks(low, high, digits)
            if MIN_TICKS <= len(ticks) <= most:
                return ticks
        decades = _decade_ticks(low, high, (1,))
        if len(decades) > most:
            return decades[:: math.ceil(len(decades) / most)]
    return _linear_ticks(low, high, most)


def _decade_ticks(low: float, high: float, digits: Iterable[int]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = (float(f"{digit}e{power}") for power in powers for digit in digits)
    return [value for value in values if low <= value <= high]


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    exponent = math.floor(math.log10((high - low) / most)) - 1
    while True:
        for step in _STEPS:
            size = step * 10.0**exponent
            first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
            if last - first + 1 <= most:
                return [round(k * size, 1 - exponent) for k in range(first, last + 1)]
        exponent += 1


def plain_labels(ticks: Iterable[float]) -> list[str]:
    """Decimal labels with the same number of decimals, as few as tell the ticks apart; never an exponent."""
    ticks = list(ticks)
    if max(ticks, default=1) / min(ticks, default=1) >= 10:
        return [f"{tick:.10f}".rstrip("0").rstrip(".") for tick in ticks]
    decimals = next(d for d in range(20) if all(abs(round(t, d) - t) <= 1e-9 * abs(t) for t in ticks))
    return [f"{tick:.{decimals}f}" for tick in ticks]


def scale_of(values: Iterable[float]) -> tuple[float, str]:
    """Power of ten to divide values by so that labels stay short, and how to write it on the axis."""
    exponent = math.floor(math.log10(min(values)))
    return 10.0**exponent, rf"$10^{{{exponent}}}$"
