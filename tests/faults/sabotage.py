"""What may happen to a cell, from inside its own process: picklable, called before the command starts."""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES: dict[str, tuple[str, str]] = {
    "reading the spec": ("experiments.__main__", "read_model"),
    "loading the data": ("experiments.run", "_load"),
    "making the folder": ("experiments.run", "prepare_folder"),
    "counting the attempt": ("experiments.run", "count_attempt"),
    "building the model": ("experiments.run", "build"),
    "setting up the trainer": ("experiments.module.TrainingModule", "configure_optimizers"),
    "reading a batch": ("experiments.trainer.Steps", "__iter__"),
    "between backward and update": ("torch.nn.utils", "clip_grad_norm_"),
    "the update": ("torch.optim.AdamW", "step"),
    "validating": ("attnres.decoder.Decoder", "token_losses"),
    "writing dynamics": ("experiments.dynamics", "write_dynamics"),
    "making a file durable": ("os", "fsync"),
    "renaming a file": ("os", "replace"),
    "dropping old checkpoints": ("experiments.checkpoint", "_drop_old"),
    "making the record": ("experiments.run", "make_record"),
    "after the record": ("experiments.tracking.NoTracker", "close"),
}
"""Where a run is while the named function is called."""


@dataclass(frozen=True)
class SignalAt:
    """Sends ``number`` to the process itself when ``place`` is reached for the ``call``-th time."""

    place: str
    call: int
    number: int

    def __call__(self) -> None:
        _at_call(self.place, self.call, lambda: os.kill(os.getpid(), self.number))


def _at_call(place: str, call: int, act: Callable[[], object]) -> None:
    """``act`` just before the ``call``-th call of the function that stands for ``place``."""
    owner, name = PLACES[place]
    target = _found(owner)
    original = getattr(target, name)
    calls = 0

    def replaced(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            act()
        return original(*arguments, **options)

    setattr(target, name, replaced)


def _found(path: str) -> Any:
    """The module, or the class in a module, that ``path`` names."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class KilledBeforeRename:
    """SIGKILL when the file ``name`` is written and about to take its name."""

    name: str

    def __call__(self) -> None:
        import signal

        replace = os.replace

        def replaced(source: Path, target: Path) -> None:
            if Path(target).name == self.name:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.replace = replaced  # type: ignore[assignment]


@dataclass(frozen=True)
class Raises:
    """In step ``step`` the training raises ``error``."""

    error: Exception
    step: int

    def __call__(self) -> None:
        def act() -> None:
            raise self.error

        _at_step(self.step, act)


@dataclass(frozen=True)
class LossIs:
    """From step ``step`` on the loss is ``value``."""

    value: float
    step: int

    def __call__(self) -> None:
        import experiments.module as module

        step_of = module.optimizer_step
        calls = 0

        def poisoned(*arguments: Any, **options: Any) -> tuple[float, float]:
            nonlocal calls
            calls += 1
            loss, norm = step_of(*arguments, **options)
            return (self.value if calls >= self.step else loss), norm

        module.optimizer_step = poisoned


@dataclass(frozen=True)
class MemoryLimit:
    """From step ``step`` on the process may have ``spare`` bytes more of address space, and wants far more."""

    step: int
    spare: int = 2**26

    def __call__(self) -> None:
        def act() -> None:
            import resource

            import torch

            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + self.spare, resource.RLIM_INFINITY))
            torch.empty(2**30, dtype=torch.uint8)

        _at_step(self.step, act)


@dataclass(frozen=True)
class Killed:
    """The kernel's out-of-memory killer: SIGKILL in step ``step``."""

    step: int

    def __call__(self) -> None:
        import signal

        _at_step(self.step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _at_step(step: int, act: Callable[[], None]) -> None:
    """Call ``act`` inside the training step of that number, whenever it is taken."""
    import experiments.module as module

    original = module.TrainingModule.training_step

    def replaced(self: Any, *arguments: Any) -> Any:
        if self.step + 1 == step:
            act()
        return original(self, *arguments)

    module.TrainingModule.training_step = replaced  # type: ignore[method-assign]


@dataclass(frozen=True)
class FillsDisk:
    """Fills ``disk`` when ``place`` is reached for the ``call``-th time."""

    disk: Path
    place: str
    call: int

    def __call__(self) -> None:
        from tests.faults.disks import fill

        _at_call(self.place, self.call, lambda: fill(self.disk))


@dataclass(frozen=True)
class MakesReadOnly:
    """Makes ``folder`` read-only when ``place`` is reached for the ``call``-th time."""

    folder: Path
    place: str
    call: int

    def __call__(self) -> None:
        from tests.faults.disks import bind_read_only

        _at_call(self.place, self.call, lambda: bind_read_only(self.folder))


@dataclass(frozen=True)
class ClockJumps:
    """The wall clock goes ``seconds`` forward (or back) when ``place`` is reached for the ``call``-th time.

    What measures durations reads another clock: the system's would be untouched by such a jump too.
    """

    seconds: float
    place: str
    call: int

    def __call__(self) -> None:
        import datetime
        import time

        real_time, real_now = time.time, datetime.datetime.now
        offset = 0.0

        def jump() -> None:
            nonlocal offset
            offset = self.seconds

        class Moved(datetime.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return real_now(tz) + datetime.timedelta(seconds=offset)

        time.time = lambda: real_time() + offset
        datetime.datetime = Moved  # type: ignore[misc]
        for module in ("experiments.attempts", "experiments.run"):
            importlib.import_module(module).datetime = Moved  # type: ignore[attr-defined]
        _at_call(self.place, self.call, jump)


@dataclass(frozen=True)
class Deletes:
    """Deletes ``path`` when ``place`` is reached for the ``call``-th time."""

    path: Path
    place: str
    call: int

    def __call__(self) -> None:
        _at_call(self.place, self.call, self.path.unlink)


@dataclass(frozen=True)
class StoreAt:
    """The MLflow store is elsewhere."""

    uri: str

    def __call__(self) -> None:
        os.environ["MLFLOW_TRACKING_URI"] = self.uri


@dataclass(frozen=True)
class Once:
    """Only the first time: ``marker`` is the file that remembers."""

    sabotage: Callable[[], None]
    marker: Path

    def __call__(self) -> None:
        if not self.marker.exists():
            self.marker.touch()
            self.sabotage()
