"""How the processes of a cell share its model; its checkpoints are those of one process all the same."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch.nn.parallel import DistributedDataParallel

from attnres.decoder import Decoder
from experiments.group import Group
from experiments.settings import Settings

State = dict[str, Any]


class Parallel(ABC):
    """Abstract way of sharing a model among the processes of ``group``."""

    name: ClassVar[str]
    """In the record."""

    def __init__(self, group: Group) -> None:
        self.group = group

    @abstractmethod
    def strategy(self) -> Strategy | str:
        """Lightning's part: it places the model and averages the gradients over the processes."""

    def accumulating(self, trainer: lightning.Trainer) -> AbstractContextManager[object]:  # noqa: ARG002
        """Within, gradients stay with their process: for every micro-batch of a step but the last."""
        return nullcontext()

    def state(self, model: Decoder, optimizer: torch.optim.Optimizer) -> tuple[State, State]:
        """State of model and optimiser, whole; every process calls."""
        return model.state_dict(), optimizer.state_dict()

    def restore(self, model: Decoder, optimizer: torch.optim.Optimizer, states: tuple[State, State]) -> None:
        """Take over what `state` gave, here or in a run of other processes."""
        model.load_state_dict(states[0], strict=True)
        optimizer.load_state_dict(states[1])


class Alone(Parallel):
    """One process."""

    name = "single"

    def strategy(self) -> str:
        """None is needed."""
        return "auto"


class Replicated(Parallel):
    """Every process holds the whole model (distributed data parallel)."""

    name = "ddp"

    def strategy(self) -> Strategy:
        """The rotary tables, its only buffers, never change: they are not sent."""
        return DDPStrategy(cluster_environment=self.group.place, broadcast_buffers=False)

    def accumulating(self, trainer: lightning.Trainer) -> AbstractContextManager[object]:
        """Gradients of all micro-batches are averaged once, with the last."""
        assert isinstance(trainer.model, DistributedDataParallel)
        return trainer.model.no_sync()


def choose(settings: Settings, group: Group) -> Parallel:
    """What ``settings`` ask for."""
    if group.world == 1:
        return Alone(group)
    return Replicated(group)
