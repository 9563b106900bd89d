"""The error a person is meant to read: one line, no traceback, exit code 2."""

from typing import Any


class UserError(ValueError):
    """Wrong usage or input.

    The message is one line that names the thing, says what is wrong and what to do.
    Every ``python -m`` command prints it without a traceback and exits with code 2.
    """


def one_line(error: Exception) -> str:
    """``error`` as one line; of a pydantic error, every place and its message."""
    details: Any = getattr(error, "errors", None)
    if callable(details):
        parts = []
        for item in details():
            place = ".".join(str(step) for step in item["loc"]) or "spec"
            parts.append(f"{place}: {item['msg'].removeprefix('Value error, ')}")
        return "; ".join(parts)
    return " ".join(str(error).split())
