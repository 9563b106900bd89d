"""What a run costs beyond its mathematics.

The harness's step and a bare loop's take turns: the data set hands out a batch only after it has trained
a second model of the same shape by one plain step, so everything that a run does between two batches (the
loop, the history, MLflow, probes, checkpoints) is timed beside the bare step that came before it.
Validation is kept to two windows: how often to validate is the experiment's choice.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnres.initialise import build
from attnres.parameters import parameter_groups
from attnres.shape import ModelShape
from benchmarks.timing import Ratio, number, row
from experiments.data.base import DATASETS
from experiments.data.synthetic import Synthetic
from experiments.data.tokens import TokenData
from experiments.recipes.base import RECIPES
from experiments.record import RunStatus
from experiments.run import run
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.tracking import prepare_store, store_uri
from sweeps.grid import ADDITIVE

SHAPE = ModelShape(depth=4, width=64, num_heads=2, mlp_width=168, vocab_size=64, seq_len=64)
STEP_SECONDS = 0.05
STEPS = 1200
CHUNK = 50
"""Steps of one ratio."""
LOOP_BAR, MLFLOW_BAR = 3.0, 1.0
"""Per cent."""


@dataclass(frozen=True)
class Interleaved(TokenData):
    """Tokens whose every batch costs a step of the bare loop first."""

    bare: Callable[[torch.Tensor], None] = print
    harness_seconds: list[float] = field(default_factory=list)
    bare_seconds: list[float] = field(default_factory=list)
    mirror_seconds: list[float] = field(default_factory=list)
    """Processor time of MLflow's thread at every step."""
    left: list[float] = field(default_factory=list)

    def batch(self, step: int, **how: Any) -> NDArray[np.int64]:
        """Time what the harness did since the last batch, then a bare step."""
        if self.left:
            self.harness_seconds.append(time.perf_counter() - self.left.pop())
            begin = time.perf_counter()
            self.bare(torch.from_numpy(super().batch(step, **how)))
            self.bare_seconds.append(time.perf_counter() - begin)
            self.mirror_seconds.append(_mirror_seconds())
        self.left.append(time.perf_counter())
        return super().batch(step, **how)

    def validation(self, seq_len: int, max_tokens: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Two windows."""
        return super().validation(seq_len, 2 * seq_len)


class InterleavedSet(Synthetic):
    """The synthetic tokens, interleaved with a bare loop."""

    name = "interleaved"

    def __init__(self, bare: Callable[[torch.Tensor], None]) -> None:
        self.bare = bare
        self.data: Interleaved | None = None

    def prepare(self, vocab_size: int, root: Path) -> TokenData:
        """One object for the whole run."""
        plain = super().prepare(vocab_size, root)
        self.data = Interleaved(**{f.name: getattr(plain, f.name) for f in fields(plain)}, bare=self.bare)
        return self.data


def _mirror_seconds() -> float:
    found = [thread for thread in threading.enumerate() if thread.name == "mlflow-mirror"]
    return time.clock_gettime(time.pthread_getcpuclockid(found[0].ident)) if found and found[0].ident else 0.0


def bare_step(spec: RunSpec) -> Callable[[torch.Tensor], None]:
    """A training step as a plain loop writes it."""
    model = build(spec.shape, spec.stream, spec.seed)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, spec.train.weight_decay), lr=spec.train.lr / 10, fused=True
    )

    def step(batch_BT: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(batch_BT[:, :-1], batch_BT[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.train.grad_clip, foreach=True)
        optimizer.step()
        loss.item()

    return step


def timed_spec() -> RunSpec:
    """A run whose step takes about `STEP_SECONDS` here: the batch is chosen for it."""
    train, _ = RECIPES.get("smoke").train(params=1e5, tokens=1e6)
    sequences = 8

    def spec_of(sequences: int) -> RunSpec:
        batch = sequences * SHAPE.seq_len
        return RunSpec(
            shape=SHAPE,
            stream=ADDITIVE,
            dataset=InterleavedSet.name,
            seed=0,
            data_seed=0,
            budget=1.0,
            tokens=batch * STEPS,
            train=train.model_copy(update={"batch_tokens": batch, "lr": 1e-3}),
        )

    for _ in range(3):  # the time of a step is not quite that of its sequences
        sequences = max(1, round(sequences * STEP_SECONDS / _step_seconds(spec_of(sequences))))
    return spec_of(sequences)


def _step_seconds(spec: RunSpec) -> float:
    step, times = bare_step(spec), []
    batch_BT = torch.zeros(spec.batch_sequences, SHAPE.seq_len + 1, dtype=torch.long)
    for _ in range(40):
        begin = time.perf_counter()
        step(batch_BT)
        times.append(time.perf_counter() - begin)
    return float(np.median(times[10:]))


def rows() -> list[dict[str, Any]]:
    """Per cent that a run takes beyond the bare loop, and of MLflow's thread."""
    spec = timed_spec()
    dataset = InterleavedSet(bare_step(spec))
    DATASETS.register(dataset.name)(dataset)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            runs=Path(folder) / "runs",
            data=Path(folder) / "data",
            checkpoint_seconds=2 * Settings().checkpoint_seconds,  # of which the bare loop takes half
        )
        settings.runs.mkdir()
        prepare_store(store_uri(settings.runs), settings.runs)
        record = run(spec, settings)
    assert record.status is RunStatus.FINISHED, "the run that is timed did not finish"
    data = dataset.data
    assert data is not None
    harness, bare = np.array(data.harness_seconds), np.array(data.bare_seconds)
    chunks = len(bare) // CHUNK
    ratios = [harness[part].sum() / bare[part].sum() for part in np.array_split(np.arange(len(bare)), chunks)]
    lo, hi = np.quantile(ratios, [0.25, 0.75]).tolist()
    whole = float(harness.sum() / bare.sum())
    step = float(np.median(bare))
    connected = next(i for i, seconds in enumerate(data.mirror_seconds) if seconds > 0)
    connected = max(connected, int(np.searchsorted(np.cumsum(harness + bare), 10.0)))
    mirror = data.mirror_seconds[-1] - data.mirror_seconds[connected]
    share = mirror / float((harness + bare)[connected:].sum()) * 2
    return [
        number(f"bare training step, ms (of about {1000 * STEP_SECONDS:.0f})", 1000 * step),
        row(
            f"run beyond a bare loop, % of {STEPS} steps (all of it; spread of {CHUNK} steps)",
            Ratio(100 * (whole - 1), 100 * (lo - 1), 100 * (hi - 1), float(harness.sum()), float(bare.sum())),
            LOOP_BAR,
        ),
        number("MLflow's thread, % of the training time, once connected", 100 * share, MLFLOW_BAR),
        number("MLflow's thread, s of processor time to connect", data.mirror_seconds[connected]),
    ]
