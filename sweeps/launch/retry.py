"""Which cells that failed are worth another start, and how many they get."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.attempts import Attempts, Cause, Failure
from experiments.record import RunStatus

PAUSE_SECONDS = 5.0
"""Before the first retry of a cell, twice as long before the next: what passes needs time to pass."""


@dataclass(frozen=True)
class AttemptEnd:
    """How one start of a cell ended, as the sweep that started it sees it."""

    status: RunStatus | None
    """Of its record; None if it left none."""
    exit_code: int | None
    """Negative: killed by that signal."""
    began: bool
    """It took the run's lock and counted itself."""
    failure: Failure | None
    """What it noted itself of its failure."""
    earlier: Sequence[Failure] = ()
    """Failures of starts before it."""


def may_pass(end: AttemptEnd) -> bool:
    """Whether another start may end otherwise.

    Yes: it was killed, stopped by somebody's signal, or could not even write how it ended; no memory was
    left; the file system or the network failed; anything else was raised for the first time at this step.
    No: it finished or diverged; it was refused, so that a person must act; it failed as it did before.
    """
    if end.status in (RunStatus.FINISHED, RunStatus.DIVERGED):
        return False
    if end.status is RunStatus.INTERRUPTED:
        return True
    if end.failure is None:
        return end.began or (end.exit_code or 0) < 0
    if end.failure.cause is Cause.REFUSED:
        return False
    return not any(end.failure.repeats(earlier) for earlier in end.earlier)


def attempt_end(
    status: RunStatus | None, exit_code: int | None, before: Attempts, after: Attempts
) -> AttemptEnd:
    """The end of the one start between ``before`` and ``after``."""
    began = after.attempts > before.attempts
    failure = after.last_failure if began else None
    return AttemptEnd(status, exit_code, began, failure, before.failures)


class Retries:
    """Counts the retries of every cell of a sweep, at most ``most`` each."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._used: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def take(self, spec_id: str, end: AttemptEnd) -> int | None:
        """The number of the retry that ``spec_id`` gets after ``end``; None: it gets no more."""
        used = self._used.get(spec_id, 0)
        if used >= self.most or not may_pass(end):
            return None
        self._used[spec_id] = used + 1
        self._due[spec_id] = self._clock() + PAUSE_SECONDS * 2**used
        return used + 1

    def due(self, spec_id: str) -> bool:
        """Whether ``spec_id`` may start now: always, but for the pause before a retry."""
        return self._clock() >= self._due.get(spec_id, 0.0)
