"""Numbers as people read them. One place, so that the same number looks the same everywhere."""

import math
from collections.abc import Sequence
from typing import Any

MISSING = "–"


def is_missing(value: Any) -> bool:
    """Whether ``value`` stands for no value."""
    return (
        value is None
        or value == ""
        or (isinstance(value, float) and math.isnan(value))
        or str(value) == "<NA>"
    )


def multiplier_text(value: float | None, lo: float | None = None, hi: float | None = None) -> str:
    """A compute multiplier: two decimals, or three where the interval is narrower than 0.1."""
    if is_missing(value):
        return MISSING
    return f"{value:.{_decimals(lo, hi)}f}"


def interval_text(lo: float | None, hi: float | None) -> str:
    """The interval of a multiplier with the decimals of its number."""
    if is_missing(lo) or is_missing(hi):
        return MISSING
    decimals = _decimals(lo, hi)
    return f"[{lo:.{decimals}f}, {hi:.{decimals}f}]"


def _decimals(lo: float | None, hi: float | None) -> int:
    if lo is None or hi is None or is_missing(lo) or is_missing(hi):
        return 2
    return 3 if hi - lo < 0.1 else 2


def loss_text(value: float | None, decimals: int = 4) -> str:
    """A loss or a difference of losses, nats."""
    return MISSING if value is None or is_missing(value) else f"{value:.{decimals}f}".replace("-", "−")


def digits(value: Any, significant: int = 4) -> str:
    """``significant`` digits; plain between 0.001 and 100,000, powers of ten beyond."""
    if is_missing(value):
        return MISSING
    number = float(value)
    if number == 0:
        return "0"
    if 1e-3 <= abs(number) < 1e5:
        decimals = max(0, significant - 1 - math.floor(math.log10(abs(number))))
        text = f"{number:,.{decimals}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")
    mantissa, exponent = f"{number:.{significant - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def percent(share: float | None, decimals: int = 1) -> str:
    """A share as a signed percentage."""
    return (
        MISSING if share is None or is_missing(share) else f"{share * 100:+.{decimals}f} %".replace("-", "−")
    )


def level_text(level: float) -> str:
    """A level of confidence: 95 %."""
    return f"{level * 100:g} %"


def p_text(p: float | None) -> str:
    """A p-value: two digits, or below one in a thousand."""
    if p is None or is_missing(p):
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def spread(values: Sequence[float], text: Any = digits) -> str:
    """``low to high``, or one value where they look alike."""
    low, high = text(min(values)), text(max(values))
    return str(low) if low == high else f"{low} to {high}"


def count_of(number: int, singular: str, plural: str = "") -> str:
    """``1 run``, ``3 runs``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
