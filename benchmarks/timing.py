"""Paired timing: contestants take turns (A B C A B C ...) in one process on one thread, so that whatever
the machine does meanwhile falls on all of them alike.

Ratios are medians over turns, with their quartiles. Time is the process's processor time: one thread
computes, and processes beside it cannot lengthen it by preemption.
"""

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Ratio:
    """Median of the turn-by-turn time ratios, its quartiles, and both medians in seconds."""

    value: float
    lo: float
    hi: float
    seconds: float
    baseline_seconds: float


def interleave(
    contestants: dict[str, Callable[[], Any]], *, turns: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of every turn of every contestant; the order is turned round at every turn."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warmup + turns):
        order = list(contestants) if turn % 2 else list(reversed(contestants))
        for name in order:
            gc.collect()
            begin = time.process_time()
            contestants[name]()
            if turn >= warmup:
                times[name].append(time.process_time() - begin)
    return times


def ratio(times: dict[str, list[float]], name: str, baseline: str) -> Ratio:
    """Time of ``name`` over that of ``baseline``, turn by turn."""
    ratios = [one / other for one, other in zip(times[name], times[baseline], strict=True)]
    lo, value, hi = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(value, lo, hi, statistics.median(times[name]), statistics.median(times[baseline]))


def row(name: str, measured: Ratio, bar: float | None = None, *, at_least: bool = False) -> dict[str, Any]:
    """A row of the benchmark table; ``bar`` is an upper limit, or a lower one with ``at_least``."""
    met = None if bar is None else (measured.value >= bar if at_least else measured.value <= bar)
    return {
        "name": name,
        "value": measured.value,
        "lo": measured.lo,
        "hi": measured.hi,
        "bar": bar,
        "met": met,
    }


def number(name: str, value: float, bar: float | None = None, *, at_least: bool = False) -> dict[str, Any]:
    """A row for a count or a measurement without spread."""
    return row(name, Ratio(value, value, value, value, 1.0), bar, at_least=at_least)


def machine() -> str:
    """The machine, for the head of the table."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return (
        f"{model}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread(s), load {os.getloadavg()[0]:.1f}"
    )
