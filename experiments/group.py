"""The processes that train one cell together: which of them this is, and how they agree.

The first process decides and writes; every other one hears of it through `Group.lead`, so that no
collective ever runs in one process alone (case D06).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from attnres.errors import UserError
from experiments.settings import Settings

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

T = TypeVar("T")

PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others: data are fetched and checkpoints written by the first alone."""
MEETING = timedelta(minutes=5)
"""How long it waits for them to start."""
_FAILURE = "failure"


class LeaderFailedError(RuntimeError):
    """The first process failed, and has said why itself."""


class OtherProcessError(RuntimeError):
    """Another process failed, and has left word of it; what this one saw is only that it was gone."""


@dataclass(frozen=True)
class Group:
    """This process among the ``world`` that train the cell; by default it is alone."""

    rank: int = 0
    local_rank: int = 0
    """Among those of this machine: the number of its device."""
    world: int = 1
    nodes: int = 1
    place: "ClusterEnvironment | None" = None
    """What started the processes."""
    store: Store | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that decides and writes."""
        return self.rank == 0

    def lead(self, work: Callable[[], T]) -> T:
        """What ``work`` returns to the first process, which alone does it; every process calls.

        Raises:
            LeaderFailedError: it raised; in the first process, whatever it raised.
        """
        if self.world == 1:
            return work()
        said: list[Any] = [False, None]
        try:
            if self.leads:
                said = [True, work()]
        finally:
            dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
        if not said[0]:
            raise LeaderFailedError("the first process failed")
        result: T = said[1]
        return result

    def total(self, values: Tensor) -> Tensor:
        """Sum of every process's ``values``, on the CPU; every process calls."""
        values = values.detach().to("cpu", copy=True)
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def mean(self, value: float) -> float:
        """Mean of every process's ``value``; every process calls."""
        return value if self.world == 1 else self.total(torch.tensor(value).double()).item() / self.world

    def any(self, flag: bool) -> bool:
        """Whether it holds in one process at least; every process calls."""
        return self.total(torch.tensor(int(flag))).item() > 0

    def tell_failure(self, text: str) -> None:
        """Leave word of what ends this process, for the first one's record: it will only see the silence."""
        if self.store is not None:
            self.store.set(_FAILURE, f"process {self.rank + 1} of {self.world}: {text}")

    def failure(self) -> str | None:
        """What another process left with `tell_failure`."""
        if self.store is None or not self.store.check([_FAILURE]):
            return None
        return bytes(self.store.get(_FAILURE)).decode()


def started_as_one_of_several() -> bool:
    """Whether srun or an elastic agent (torchrun, `experiments.start`) started this process beside others."""
    return dist.is_torchelastic_launched() or int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


def is_first() -> bool:
    """Whether this process is the first, or the only one."""
    number = os.environ["RANK"] if dist.is_torchelastic_launched() else os.environ.get("SLURM_PROCID", "0")
    return not started_as_one_of_several() or int(number) == 0


@contextmanager
def joined(settings: Settings, name: str) -> Iterator[Group]:
    """The group of ``settings.processes``, met under ``name``; one process alone has nobody to meet.

    Raises:
        UserError: another number of processes was started.
    """
    if settings.processes == 1:
        yield Group()
        return
    group = _meet(settings.processes, name)
    backend, device = "gloo", None
    if settings.device != "cpu" and torch.cuda.is_available():
        backend, device = "cpu:gloo,cuda:nccl", torch.device("cuda", group.local_rank)
        torch.cuda.set_device(device)
    assert group.store is not None
    dist.init_process_group(
        backend,
        store=group.store,
        rank=group.rank,
        world_size=group.world,
        timeout=PATIENCE,
        device_id=device,
    )
    yield group
    dist.destroy_process_group()  # not after a failure: it would wait for the others


def _meet(processes: int, name: str) -> Group:
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if dist.is_torchelastic_launched():
        place: ClusterEnvironment = TorchElasticEnvironment()
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    else:
        place = SLURMEnvironment(auto_requeue=False)
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
    if place.world_size() != processes:
        raise UserError(
            f"processes {processes}: {place.world_size()} were started; start as many, or set --processes"
        )
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = place.main_address, str(place.main_port)
    rank = place.global_rank()
    store, *_ = next(rendezvous("env://", rank=rank, world_size=processes, timeout=MEETING))
    return Group(rank, place.local_rank(), processes, nodes, place, PrefixStore(name, store))
