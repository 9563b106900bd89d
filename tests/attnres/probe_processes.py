"""Run in two processes by test_probes_processes.py: data-parallel steps, each of them probed."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from attnres.initialise import build
from attnres.probes import Probe
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec

STEPS = 50
SHAPE = ModelShape(depth=2, width=16, num_heads=2, mlp_width=24, vocab_size=32, seq_len=8)


class Loss(torch.nn.Module):
    """What data parallelism wraps: the loss of a part of the batch."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model.loss(tokens[:, :-1], tokens[:, 1:])


def train(rank: int, world: int) -> list:
    """The readings of step 1 and of the last step; rank 0 of 1 sees the whole batch."""
    model = build(SHAPE, StreamSpec(name="full_attnres"), seed=0)
    with torch.no_grad():
        model.stream.depth_attention.pseudo_queries.normal_(generator=torch.Generator().manual_seed(0))
    loss = DistributedDataParallel(Loss(model)) if world > 1 else Loss(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    found = []
    for step in range(STEPS):
        tokens = torch.randint(0, 32, (8, 9), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        with Probe(model) as probe:
            loss(tokens.chunk(world)[rank]).backward()
        readings = probe.readings()
        optimizer.step()
        if step in (0, STEPS - 1):
            found.append(readings)
    return found


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    alone = train(0, 1) if rank == 0 else None
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    together = train(rank, 2)
    dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps({"alone": alone, "together": together}))
