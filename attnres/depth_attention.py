"""Depth attention over blocks of sublayers: what Full and Block AttnRes have in common.

Full AttnRes is the partition into blocks of one sublayer.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnres.mixing import inverse_rms, mix
from attnres.shape import ModelShape

State = tuple[Tensor, ...]


class DepthAttention(nn.Module):
    """Pseudo-queries, key-norm gains and the bookkeeping of sources for one partition.

    State: sources v_0 .. v_n, then their inverse RMS r_0 .. r_n. The last source is the running sum of
    the current block, if that block has begun.

    Args:
        shape: the model's shape.
        sizes: sublayers of each block.
    """

    def __init__(self, shape: ModelShape, sizes: Sequence[int]) -> None:
        super().__init__()
        self.width = shape.width
        self.num_sublayers = shape.num_sublayers
        self.sizes = tuple(sizes)
        self.firsts = frozenset(accumulate((0, *sizes)))
        """Sites that start a block; num_sublayers, the output read, follows the last one."""
        reads = shape.num_sublayers + 1
        self.pseudo_queries = nn.Parameter(torch.empty(reads, shape.width))
        self.key_gains = nn.Parameter(torch.empty(reads, shape.width))

    def start(self, x_BTD: Float[Tensor, "B T D"]) -> State:
        """The embedding is the first source."""
        return (x_BTD, inverse_rms(x_BTD))

    def read(self, state: State, site: int) -> Float[Tensor, "B T D"]:
        """Attention of read ``site`` over every source there is."""
        count = len(state) // 2
        return mix(state[:count], state[count:], self.pseudo_queries[site], self.key_gains[site])

    def write(self, state: State, site: int, y_BTD: Float[Tensor, "B T D"]) -> State:
        """Begin a new source at the first site of a block, or replace the running sum by a new tensor."""
        count = len(state) // 2
        sources, scales = state[:count], state[count:]
        wide_BTD = y_BTD.to(sources[0].dtype)
        if site in self.firsts:
            return (*sources, wide_BTD, *scales, inverse_rms(wide_BTD))
        running_BTD = sources[-1] + wide_BTD
        return (*sources[:-1], running_BTD, *scales[:-1], inverse_rms(running_BTD))

    def sources(self, site: int) -> tuple[str, ...]:
        """Names of the sources of read ``site``."""
        names = ["embedding"]
        for first, size in zip(accumulate((0, *self.sizes)), self.sizes, strict=False):
            members = range(first, min(first + size, site))
            if members:
                names.append("+".join(f"f{member}" for member in members))
        return tuple(names)

    def flops_per_token(self) -> int:
        """3 x the forward FLOPs: 4 n d a read (logits, mix) and 2 d a new tensor (its RMS)."""
        read = sum(4 * len(self.sources(site)) * self.width for site in range(self.num_sublayers + 1))
        norms = 2 * self.width * (self.num_sublayers + 1)
        return 3 * (read + norms)

    def initialise(self, name: str) -> Tensor | None:
        """Queries start at exactly zero (every read is a mean), gains at one."""
        size = (self.num_sublayers + 1, self.width)
        starts = {"pseudo_queries": torch.zeros(size), "key_gains": torch.ones(size)}
        return starts.get(name.rpartition(".")[2])
