"""The error a person is meant to read: one line, no traceback, exit code 2."""

from typing import Any


class UserError(ValueError):
    """Wrong usage or input.

    The message is one line that names the thing, says what is wrong and what to do.
    Every ``python -m`` command prints it without a traceback and exits with code 2.
    """


MOST_PLACES = 4
"""Places of a pydantic error that are told; a damaged file may be wrong in all of them."""


def one_line(error: Exception) -> str:
    """``error`` as one line; of a pydantic error, its first places, each with its message and value."""
    details: Any = getattr(error, "errors", None)
    if callable(details):
        items = details()
        parts = [_told(item) for item in items[:MOST_PLACES]]
        if len(items) > MOST_PLACES:
            parts.append(f"and {len(items) - MOST_PLACES} more")
        return " ".join("; ".join(parts).split())
    return " ".join(str(error).split())


def _told(item: dict[str, Any]) -> str:
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, UserError):  # names its thing itself
        return str(cause)
    place = ".".join(str(step) for step in item["loc"])
    text = item["msg"].removeprefix("Value error, ")
    value = item.get("input")
    if place and cause is None and item["type"] != "missing" and isinstance(value, str | int | float | None):
        text += f" (got {value!r:.60})"
    return f"{place}: {text}" if place else text
