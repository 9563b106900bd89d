"""How the processes of a cell share its model; its checkpoints are those of one process all the same."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from attnres.decoder import Decoder
from attnres.sharded import whole
from attnres.sublayers import MLP, Attention
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

    def divide(self, model: Decoder, mesh: DeviceMesh | None) -> None:  # noqa: B027  (most leave it whole)
        """Leave to each process of ``mesh`` its part of ``model``; called before the optimiser is made."""

    def accumulating(self, trainer: lightning.Trainer) -> AbstractContextManager[object]:  # noqa: ARG002
        """Within, gradients stay with their process: for every micro-batch of a step but the last."""
        return nullcontext()

    def state(self, model: Decoder, optimizer: torch.optim.Optimizer) -> tuple[State, State]:
        """State of model and optimiser, whole, in the first process; every one calls."""
        return model.state_dict(), optimizer.state_dict()

    def restore(self, model: Decoder, optimizer: torch.optim.Optimizer, states: tuple[State, State]) -> None:
        """Take over what `state` gave, here or in a run of other processes; every one calls."""
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
        return DDPStrategy(broadcast_buffers=False)

    def accumulating(self, trainer: lightning.Trainer) -> AbstractContextManager[object]:
        """Gradients of all micro-batches are averaged once, with the last."""
        assert isinstance(trainer.model, DistributedDataParallel)
        return trainer.model.no_sync()


class Sharded(Parallel):
    """Every process holds a part of each parameter and of its moments (fully sharded data parallel).

    The matrices of a sublayer are gathered for its passes; norm gains, embedding, head and the parameters of
    the stream for the whole model's, since streams read them outside the sublayers.
    """

    name = "fsdp"

    def strategy(self) -> Strategy:
        """Lightning's for torch's FSDP2: data parallel alone."""
        return ModelParallelStrategy(data_parallel_size=self.group.world, tensor_parallel_size=1)

    def divide(self, model: Decoder, mesh: DeviceMesh | None) -> None:
        """Shard every sublayer's matrices as one unit, then what is left."""
        assert mesh is not None
        mesh = mesh["data_parallel"]
        for sublayer in model.sublayers:
            assert isinstance(sublayer, Attention | MLP)
            first = sublayer.qkv if isinstance(sublayer, Attention) else sublayer.gate_up
            fully_shard([first, sublayer.out], mesh=mesh)
        fully_shard(model, mesh=mesh)

    @contextmanager
    def accumulating(self, trainer: lightning.Trainer) -> Iterator[None]:
        """Gradients of all micro-batches are averaged once, with the last."""
        model = trainer.lightning_module.model
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    def state(self, model: Decoder, optimizer: torch.optim.Optimizer) -> tuple[State, State]:
        """Gathered tensor by tensor, kept by the first process."""
        return self._gathered(model.state_dict()), self._gathered(optimizer.state_dict())

    def restore(self, model: Decoder, optimizer: torch.optim.Optimizer, states: tuple[State, State]) -> None:
        """Each process takes its parts of the whole tensors that all of them have read."""
        parameters = dict(model.named_parameters())
        model.load_state_dict({name: _part(value, parameters[name]) for name, value in states[0].items()})
        ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments = {
            number: {name: _part(value, ordered[number]) for name, value in values.items()}
            for number, values in states[1]["state"].items()
        }
        optimizer.load_state_dict({**states[1], "state": moments})

    def _gathered(self, state: Any) -> Any:
        if isinstance(state, Tensor):
            full = whole(state)
            return full.cpu() if self.group.leads else None
        if isinstance(state, dict):
            return {name: self._gathered(value) for name, value in state.items()}
        return state


def _part(value: Tensor, like: Tensor) -> Tensor:
    """This process's part of ``value`` where ``like`` is divided; a count of steps has no parts."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def choose(settings: Settings, group: Group) -> Parallel:
    """What ``settings`` ask for."""
    kinds: dict[str, type[Parallel]] = {"ddp": Replicated, "fsdp": Sharded}
    return Alone(group) if group.world == 1 else kinds[settings.strategy](group)
