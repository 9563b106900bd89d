"""What a person sees: the plan as a table, a sweep as it goes."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from experiments.data.base import TokenData
from sweeps.concerns import disk_bytes_left, memory_bytes, passes_of
from sweeps.launch.base import Ended, Event, Note, Progress, Retrying, Stopping, Warned
from sweeps.plan import CellState, PlannedCell
from sweeps.trunks import saving

LINE_SECONDS = 10.0
"""Time between two progress lines."""


def duration(seconds: float | None) -> str:
    """``8 s``, ``4 min 10 s``, ``2 h 5 min``."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def quantity(value: float) -> str:
    """Three digits and a prefix: ``1.25M``."""
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


class ProgressLines:
    """Plain lines, readable in a terminal, a log and CI alike: cells that end, and where all stands."""

    def __init__(self, planned: int, done_before: int) -> None:
        self.planned, self.done_before = planned, done_before
        self._last = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Print ``event``; progress at most every `LINE_SECONDS`."""
        if isinstance(event, Ended):
            stream = sys.stdout if event.status == "finished" else sys.stderr
            print(f"  {event.status}: {event.cell.label} ({event.message})", file=stream, flush=True)
        elif isinstance(event, Retrying):
            told = f"  retrying, {event.number} of {event.most}: {event.cell.label} ({event.message})"
            print(told, file=sys.stderr, flush=True)
        elif isinstance(event, Warned):
            print(f"  warning: {event.cell.label}: {event.message}", file=sys.stderr, flush=True)
        elif isinstance(event, Stopping):
            what = "cell to write its checkpoint" if event.cells == 1 else "cells to write their checkpoints"
            print(f"  waiting for {event.cells} {what} (at most {event.seconds:.0f} s)", flush=True)
        elif isinstance(event, Note):
            print(f"  {event.message}", flush=True)
        elif time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            print(self._line(event), flush=True)

    def _line(self, progress: Progress) -> str:
        done = self.done_before + progress.done
        head = f"[{done}/{self.planned} cells"
        head += f", failed: {progress.failed}" if progress.failed else ""
        head += f", queued: {progress.queued}" if progress.queued else ""
        head += f", {duration(progress.seconds_left)} left]"
        cells = []
        for running in progress.running:
            spec = running.cell.spec
            text = f"{spec.stream.name} {running.cell.size} step {running.step}/{spec.steps}"
            if running.loss is not None:
                text += f" loss {running.loss:.3f}"
            if running.tokens_per_second:
                text += f" {quantity(running.tokens_per_second)}tok/s"
            cells.append(text)
        return f"{head} {' | '.join(cells)}"


COLUMNS = (
    *("state", "arm", "size", "seed", "params", "tokens", "steps", "lr", "FLOPs", "passes", "memory"),
    *("time", "run"),
)
"""Of the plan's table, which may have a thousand rows."""
TEXTS = ("state", "arm", "size", "run")
"""Columns that are not numbers."""


def _row(planned: PlannedCell, data: Mapping[tuple[str, int], TokenData]) -> tuple[str, ...]:
    spec = planned.cell.spec
    passes = passes_of(spec, data)
    return (
        planned.state.value,
        spec.stream.variant + (" (trunk)" if planned.cell.role == "trunk" else ""),
        planned.cell.size,
        str(spec.seed),
        quantity(planned.cell.params),
        quantity(spec.tokens),
        str(spec.steps),
        f"{spec.train.lr:g}",
        f"{planned.cell.trained():.2e}",
        "?" if passes is None else f"{passes:.2f}",
        f"{quantity(memory_bytes(spec))}B",
        duration(planned.seconds),
        spec.spec_id,
    )


def _aligned(text: str, column: str, width: int) -> str:
    return text.ljust(width) if column in TEXTS else text.rjust(width)


def print_plan(plan: Sequence[PlannedCell], jobs: int, data: Mapping[tuple[str, int], TokenData]) -> None:
    """One row a cell, then the totals. ``data``: the data sets that are on disk, for the passes over them."""
    rows = [COLUMNS, *(_row(planned, data) for planned in plan)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(_aligned, row, COLUMNS, widths)).rstrip())
    left = [planned for planned in plan if not planned.done]
    seconds = sum(planned.seconds for planned in left) / jobs
    saved = saving([planned.cell for planned in plan])
    if saved is not None:
        print(
            f"{saved.trunks} trunks and the cooldowns of {saved.branches} branches: {saved.trained:.3g} "
            f"FLOPs; as separate runs {saved.separate:.3g}: {saved.share:.1%} saved"
        )
    print(
        f"{summary(plan)}; {sum(planned.cell.trained() for planned in plan):.2e} FLOPs in all; "
        f"left: {len(left)} cells, about {duration(seconds)} with {jobs} side by side, "
        f"{quantity(disk_bytes_left(plan))}B of disk"
    )


def summary(plan: Sequence[PlannedCell]) -> str:
    """``21 cells: 15 finished, 6 missing``; trunks are counted apart: ``; 3 trunks: 3 finished``."""
    cells = [planned for planned in plan if planned.cell.role != "trunk"]
    trunks = [planned for planned in plan if planned.cell.role == "trunk"]
    return _counted("cells", cells) + (f"; {_counted('trunks', trunks)}" if trunks else "")


def _counted(what: str, plan: Sequence[PlannedCell]) -> str:
    counts = Counter(planned.state for planned in plan)
    parts = [f"{counts[state]} {state.value}" for state in CellState if counts[state]]
    return f"{len(plan)} {what}: {', '.join(parts)}"
