"""What happens between two steps: validation, history, checkpoints, signals, divergence.

Everything here acts at step boundaries and depends on the step number alone, never on epochs, loader
state or wall time (checkpoint intervals apart, which change no result). Of several processes all do the
same: what they see is reduced first, and the first one's files and clock are `Group.lead`'s.
"""

import math
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import Tensor

from experiments.checkpoint import BRANCH_POINTS, CHECKPOINTS, keep_checkpoint, save_checkpoint
from experiments.history import History, finite
from experiments.module import TrainingModule
from experiments.signals import SIGNALS
from experiments.validation import ValidationLoss, validate


class DivergedError(RuntimeError):
    """The loss or its gradient stopped being a number, or fell far behind a uniform guess."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"diverged at step {step}: {what}")
        self.step = step


class Stop:
    """A request to stop at the next step boundary, set by a signal handler that does nothing else."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Stop":
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Take over the signals; called again once Lightning has installed its own handlers."""
        for number in SIGNALS:
            previous = signal.signal(number, self._receive)
            self._previous.setdefault(number, previous)

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = signal.Signals(number)


class Recorder(lightning.Callback):
    """Writes the history, validates, checkpoints, and ends the run early where it must.

    Args:
        run_dir: folder of the run.
        history: rows so far; None in a process that is not the first.
        windows_NT: validation windows.
        evaluations: steps after which it validates, the last at the run's end.
        branch_points: steps whose checkpoint is kept, in a folder of its own, for runs that branch there.
        checkpoint_seconds: least time between checkpoints.
        checkpoint_steps: checkpoint at multiples of this step instead.
        stop: set by signals.
        seconds: training time of earlier attempts.
        tell: called with every row (MLflow).
    """

    def __init__(
        self,
        run_dir: Path,
        history: History | None,
        windows_NT: Tensor,
        *,
        evaluations: Collection[int],
        branch_points: Collection[int],
        checkpoint_seconds: float,
        checkpoint_steps: int | None,
        stop: Stop,
        seconds: float,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self.run_dir = run_dir
        self.history = history
        self.windows_NT = windows_NT
        self.evaluations = evaluations
        self.branch_points = branch_points
        self.checkpoint_seconds = checkpoint_seconds
        self.checkpoint_steps = checkpoint_steps
        self.stop = stop
        self.tell = tell
        self.validation: ValidationLoss | None = None
        self.step_seconds: list[float] = []
        self._earlier_seconds = seconds
        self._started = self._step_started = self._saved = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:  # noqa: ARG002
        """Start the clocks; take the signals back from Lightning."""
        self.stop.install()
        self._started = self._saved = time.monotonic()

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the clock of the step."""
        self._step_started = time.monotonic()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any
    ) -> None:
        """Record the step, then do what is due after it."""
        assert isinstance(pl_module, TrainingModule)
        self.step_seconds.append(time.monotonic() - self._step_started)
        step, spec, group = pl_module.step, pl_module.spec, pl_module.parallel.group
        self._check_divergence(pl_module)
        row: dict[str, Any] = {
            "step": step,
            "tokens": step * spec.train.batch_tokens,
            "train_loss": pl_module.last_loss,
            "lr": pl_module.last_lr,
            "grad_norm": finite(pl_module.last_grad_norm),
        }
        row |= pl_module.dynamics.keep(step)
        if step in self.evaluations:
            with trainer.precision_plugin.forward_context():
                self.validation = validate(
                    pl_module.model, self.windows_NT, group, sequences=spec.batch_sequences // group.world
                )
            row["val_loss"] = finite(self.validation.mean)
        stopping = group.any(self.stop.received is not None)
        due = group.lead(lambda: self._write(row))
        if step in self.branch_points:
            self.save(trainer, pl_module, BRANCH_POINTS)
        elif step < spec.steps and (stopping or due):
            self.save(trainer, pl_module)
        if stopping:
            trainer.should_stop = True

    def _write(self, row: dict[str, Any]) -> bool:
        """Add the row of the step just done; whether a checkpoint is due."""
        assert self.history is not None
        row["seconds"] = round(self.seconds(), 3)
        self.history.append(row)
        self.tell(row)
        return self._checkpoint_due(row["step"])

    def seconds(self) -> float:
        """Training time so far, over all attempts."""
        return self._earlier_seconds + time.monotonic() - self._started

    def save(self, trainer: lightning.Trainer, module: TrainingModule, folder: str = CHECKPOINTS) -> None:
        """Checkpoint of the step just done."""
        model, optimizer = module.parallel.state(module.model, trainer.optimizers[0])

        def write() -> None:
            assert self.history is not None
            self.history.sync()
            module.dynamics.write()
            state = {
                "spec_id": module.spec.spec_id,
                "model": model,
                "optimizer": optimizer,
                "rng": torch.get_rng_state(),
                "seconds": self.seconds(),
            }
            keep = keep_checkpoint if folder == BRANCH_POINTS else save_checkpoint
            keep(self.run_dir / folder, module.step, state)

        module.parallel.group.lead(write)
        self._saved = time.monotonic()

    def _checkpoint_due(self, step: int) -> bool:
        if self.checkpoint_steps is not None:
            return step % self.checkpoint_steps == 0
        return time.monotonic() - self._saved >= self.checkpoint_seconds

    def _check_divergence(self, module: TrainingModule) -> None:
        for what, value in (("loss", module.last_loss), ("gradient norm", module.last_grad_norm)):
            if not math.isfinite(value):
                raise DivergedError(module.step, f"the {what} is {value}")
        uniform = math.log(module.spec.shape.vocab_size)
        if module.step > module.spec.train.warmup and module.last_loss > 2 * uniform:
            raise DivergedError(module.step, f"loss {module.last_loss:.3g} is over twice a uniform guess's")
