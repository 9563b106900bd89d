"""A launcher executes cells and says what happens to them as it happens."""

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from attnres.registry import Registry
from experiments.settings import Settings
from sweeps.grid import Cell, Grid
from sweeps.throughput import measure_missing


@dataclass(frozen=True)
class Progress:
    """State of a sweep at one moment, for whoever shows it."""

    done: int
    failed: int
    total: int
    running: tuple["Running", ...]
    seconds_left: float | None
    queued: int = 0
    """Waiting for a machine, where a scheduler hands them out."""


@dataclass(frozen=True)
class Running:
    """A cell at work."""

    cell: Cell
    step: int
    loss: float | None
    tokens_per_second: float | None


@dataclass(frozen=True)
class Ended:
    """A cell that ended, the moment it ended."""

    cell: Cell
    status: str
    message: str


@dataclass(frozen=True)
class Retrying:
    """A cell that failed in a way that may pass: it is started again."""

    cell: Cell
    number: int
    most: int
    message: str
    """How it failed."""


@dataclass(frozen=True)
class Warned:
    """Something about a cell that people should know although it goes on."""

    cell: Cell
    message: str


@dataclass(frozen=True)
class Stopping:
    """The sweep was asked to stop; the cells at work write their checkpoints first."""

    cells: int
    seconds: float
    """At most."""


@dataclass(frozen=True)
class Note:
    """Something about the sweep as a whole."""

    message: str


Event = Progress | Ended | Retrying | Warned | Stopping | Note
Show = Callable[[Event], None]


class Launcher(ABC):
    """Abstract launcher. When `launch` returns, nothing runs that the same command would start a second time.

    Args:
        site_file: what it must know of the place where cells are executed (``--site``).
    """

    def __init__(self, site_file: Path | None = None) -> None:
        self.site_file = site_file

    def check(self, settings: Settings, *, jobs: int) -> None:  # noqa: B027  (most have nothing to refuse)
        """Refuse (``UserError``) settings that no cell could be executed with."""

    @abstractmethod
    def launch(
        self,
        cells: Sequence[Cell],
        settings: Settings,
        *,
        jobs: int,
        retries: int,
        fail_fast: bool,
        show: Show,
    ) -> bool:
        """Execute ``cells``; True unless the sweep was interrupted.

        Args:
            cells: cells still to train, in the order of the grid.
            settings: operational settings of every cell.
            jobs: processes side by side.
            retries: most new starts of a cell whose failure may pass.
            fail_fast: stop starting cells after the first that fails, its retries used up.
            show: told of progress (at least every few seconds) and of every cell that ends.
        """

    def measure(self, grid: Grid, study: Path, settings: Settings, show: Show) -> None:  # noqa: ARG002
        """Time the arms of ``grid`` side by side where cells are executed; kept in ``study``/plan.json."""
        measure_missing(grid, study, settings)


LAUNCHERS: Registry[type[Launcher]] = Registry("launcher", "sweeps.launch")


class Stoppable(Protocol):
    """Work that looks now and then whether it was asked to stop."""

    stop_requested: bool


@contextmanager
def stop_on_signals(work: Stoppable) -> Iterator[None]:
    """SIGINT and SIGTERM ask ``work`` to stop at its next look; earlier handlers come back afterwards."""

    def receive(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        work.stop_requested = True

    previous = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
