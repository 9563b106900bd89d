"""Throughput of the arms of one size, side by side: A B C A B C in one process.

The wall-clock compute multiplier rests on these ratios, never on the wall time of cells that shared
the machine with others.
"""

import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnres.initialise import build
from experiments.data.base import DATASETS
from experiments.environment import device_kind
from experiments.optim import build_optimizer
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.step import optimizer_step

WARM_UP_ROUNDS = 3
LEAST_ROUNDS = 11
MOST_ROUNDS = 41
SECONDS_PER_ARM = 4.0


@dataclass(frozen=True)
class ThroughputRatio:
    """Training tokens/s of an arm over the baseline's: median over rounds and its 95 % interval."""

    variant: str
    baseline: str
    ratio: float
    lo: float
    hi: float
    rounds: int
    machine: str


def measure(specs: Sequence[RunSpec], settings: Settings) -> list[ThroughputRatio]:
    """Ratios of ``specs[1:]`` to ``specs[0]``: whole training steps (forward, backward, clip, update).

    Every round times one step of each arm; a round's ratio compares steps that ran milliseconds apart,
    so that a machine that speeds up or slows down moves both. The first arm changes from round to round.
    """
    torch.set_num_threads(settings.threads)
    device = torch.device("cuda" if torch.cuda.is_available() and settings.device != "cpu" else "cpu")
    arms = [_Arm(spec, settings, device) for spec in specs]
    for _ in range(WARM_UP_ROUNDS):
        for arm in arms:
            arm.step()
    times: list[list[float]] = [[] for _ in arms]
    deadline = time.monotonic() + SECONDS_PER_ARM * len(arms)
    while len(times[0]) < LEAST_ROUNDS or (len(times[0]) < MOST_ROUNDS and time.monotonic() < deadline):
        first = len(times[0]) % len(arms)
        for index in [*range(first, len(arms)), *range(first)]:
            times[index].append(arms[index].step())
    machine = (
        f"{device_kind(device)} {platform.machine()}, {settings.threads} threads, torch {torch.__version__}"
    )
    return [
        _ratio(specs[0], spec, [base / own for base, own in zip(times[0], own_times, strict=True)], machine)
        for spec, own_times in zip(specs[1:], times[1:], strict=True)
    ]


class _Arm:
    def __init__(self, spec: RunSpec, settings: Settings, device: torch.device) -> None:
        self.spec, self.settings, self.device = spec, settings, device
        self.model = build(spec.shape, spec.stream, spec.seed).to(device)
        self.optimizer = build_optimizer(self.model, spec)
        data = DATASETS.get(spec.dataset).load(spec.shape.vocab_size, settings.data)
        self.batch_BT = torch.from_numpy(
            data.batch(
                0,
                batch_sequences=spec.batch_sequences,
                seq_len=spec.shape.seq_len,
                data_seed=spec.data_seed,
            )
        ).to(device)

    def step(self) -> float:
        """Seconds of one training step; its loss is read back, so that the work is done."""
        started = time.perf_counter()
        with torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.spec.train.precision == "bf16"
        ):
            optimizer_step(
                self.model,
                self.optimizer,
                self.batch_BT,
                self.spec,
                lr=self.spec.train.lr * 1e-3,
                micro_sequences=self.settings.micro_sequences,
            )
        return time.perf_counter() - started


def _ratio(baseline: RunSpec, spec: RunSpec, ratios: list[float], machine: str) -> ThroughputRatio:
    """Median and the order statistics that bracket it with 95 % (normal approximation of the binomial)."""
    ordered = sorted(ratios)
    reach = 0.98 * len(ordered) ** 0.5
    lo = max(0, int((len(ordered) - 1) / 2 - reach))
    hi = min(len(ordered) - 1, int((len(ordered) - 1) / 2 + reach + 0.5))
    return ThroughputRatio(
        spec.stream.variant,
        baseline.stream.variant,
        statistics.median(ordered),
        ordered[lo],
        ordered[hi],
        len(ordered),
        machine,
    )
