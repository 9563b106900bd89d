"""Signals that ask a run to end. Light to import: handlers must stand before the seconds that torch takes."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def interrupting() -> Iterator[None]:
    """Every signal raises KeyboardInterrupt: until training takes over, stopping at once loses nothing."""
    previous = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_with(code: int) -> NoReturn:
    """End the process with ``code``, whatever signal comes while the interpreter shuts down."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)
