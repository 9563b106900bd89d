"""Depth attention over blocks of sublayers: what Full and Block AttnRes have in common.

Full AttnRes is the partition into blocks of one sublayer.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnres.fused_reads import find_read
from attnres.kernels.plain import wide
from attnres.kernels.workspace import Layout
from attnres.mixing import Source, absorb, read, read_normalised
from attnres.norm import product_dtype, rms_norm
from attnres.streams.base import Mixture, State


class DepthAttention(nn.Module):
    """Pseudo-queries, key-norm gains and the bookkeeping of sources for one partition.

    State: the effective queries (reads, D), then value, logits and ports of every source, in order. The
    last source is the running sum of the current block, if that block has begun; the next write replaces
    it by a new tensor. Without gradients, where the C kernels serve: the queries and a workspace that holds
    all sources and is written in place. Where a fused read serves (`attnres.fused_reads`): the sources alone.

    Args:
        width: channels.
        num_sublayers: sites that write; one more read follows them, the output's.
        sizes: sublayers of each block.
    """

    def __init__(self, width: int, num_sublayers: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.width = width
        self.num_reads = num_sublayers + 1
        self.sizes = tuple(sizes)
        self.recompute = False
        """Operational: mix again in backward rather than keep the input of every norm, and all logits."""
        self.starts = frozenset(accumulate((0, *sizes)))
        """Sites that start a block; the output read, at num_sublayers, follows the last one."""
        self._written = tuple(self._written_before(site) for site in range(self.num_reads))
        self._positions = tuple(
            tuple(site - (origin + 1) for origin in written) for site, written in enumerate(self._written)
        )
        """Of each read: which of each source's reads it is."""
        self._layout = Layout(len(sizes) + 1, width, self.num_reads)
        self.pseudo_queries = nn.Parameter(torch.empty(self.num_reads, width))
        self.key_gains = nn.Parameter(torch.empty(self.num_reads, width))

    def start(self, x_BTD: Float[Tensor, "B T D"]) -> State:
        """The embedding is the first source of every read."""
        if wide(x_BTD).dtype == torch.float32 and find_read(x_BTD.device, self.width) is not None:
            return (wide(x_BTD),)
        queries_RD = self.pseudo_queries * self.key_gains
        if not torch.is_grad_enabled():
            memory = self._layout.allocate(x_BTD, queries_RD)
            if memory is not None:
                self._layout.absorb(memory, queries_RD, x_BTD, 0, 0, self.num_reads, add=False)
                return (queries_RD, memory)
        return (queries_RD, *self._absorbed(None, x_BTD, queries_RD, 0, self.num_reads))

    def read(self, state: State, site: int) -> Float[Tensor, "B T D"]:
        """Attention of read ``site`` over every source there is."""
        if _fused(state):
            fused = find_read(state[0].device, self.width)
            assert fused is not None, "it served when the state began"
            return fused(state, self.pseudo_queries[site], self.key_gains[site])
        return read(*self._unpack(state, site))

    def read_normalised(self, state: State, site: int, gain_D: Tensor) -> Float[Tensor, "B T D"]:
        """RMSNorm of `read`, in one pass."""
        if _fused(state):
            y_BTD: Tensor = rms_norm(self.read(state, site), gain_D)
            return y_BTD
        if len(state) == 2:
            count = len(self._written[site])
            return self._layout.mix_and_norm(state[1], count, site, gain_D, product_dtype(gain_D))
        query_D = state[0][site].detach() if self.recompute else None
        return read_normalised(*self._unpack(state, site), gain_D, query_D)

    def write(self, state: State, site: int, y_BTD: Float[Tensor, "B T D"]) -> State:
        """Begin a new source at the first site of a block, or replace the running sum by a new tensor."""
        if _fused(state):
            new = site in self.starts
            return (*state, wide(y_BTD)) if new else (*state[:-1], state[-1] + wide(y_BTD))
        queries_RD = state[0]
        if len(state) == 2:
            slot, add = len(self._written[site + 1]) - 1, site not in self.starts
            self._layout.absorb(state[1], queries_RD, y_BTD, slot, site + 1, self._reads_of(site), add=add)
            return state
        if site in self.starts:
            return (*state, *self._absorbed(None, y_BTD, queries_RD, site + 1, self._reads_of(site)))
        with_ports = len(state) > 1 + 2 * len(self._written[site])
        before = len(state) - (4 if with_ports else 2)  # a running sum has one read, of two ports
        source = self._absorbed(state[before], y_BTD, queries_RD, site + 1, self._reads_of(site))
        return (*state[:before], *source)

    def mixture(self, state: State, site: int) -> Mixture:
        """The read's own weights, from the logits that it used, and its sources."""
        sources, positions = self._unpack(state, site)
        logits = [source.logits_lX[position] for source, position in zip(sources, positions, strict=True)]
        values = tuple(source.value_BTD for source in sources)
        weights_nX = torch.stack(logits).softmax(0)
        return Mixture(weights_nX.view(len(values), *values[0].shape[:-1]), values)

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
        reads = sum(4 * len(self.sources(site)) * self.width for site in range(self.num_reads))
        return 3 * (reads + 2 * self.width * self.num_reads)

    def kept_per_token(self) -> int:
        """Every output or running sum and the embedding, with its inverse RMS and its logits; lse of a read.

        With recomputation the sources take the place of the norms' inputs, and only the lse are left.
        """
        if self.recompute:
            return self.num_reads
        logits = self.num_reads + sum(map(self._reads_of, range(self.num_reads - 1)))
        return self.num_reads * (self.width + 1) + logits + self.num_reads

    def initialise(self, name: str) -> Tensor | None:
        """Queries start at exactly zero (every read is a mean), gains at one."""
        size = (self.num_reads, self.width)
        starts = {"pseudo_queries": torch.zeros(size), "key_gains": torch.ones(size)}
        return starts.get(name.rpartition(".")[2])

    def _written_before(self, site: int) -> tuple[int, ...]:
        """Sites after which the sources of read ``site`` were written; the embedding's is -1."""
        finished = [start - 1 for start in sorted(self.starts) if start <= site]
        return tuple(finished) if site in self.starts else (*finished, site - 1)

    def _reads_of(self, site: int) -> int:
        """How many reads attend over what is written at ``site``: a running sum has the next one only."""
        return self.num_reads - (site + 1) if site + 1 in self.starts else 1

    def _absorbed(
        self, running_BTD: Tensor | None, y_BTD: Tensor, queries_RD: Tensor, first: int, count: int
    ) -> State:
        """A new source's part of the state."""
        source = absorb(running_BTD, y_BTD, queries_RD, first, count, recompute=self.recompute)
        return (source.value_BTD, source.logits_lX, *source.ports)

    def _unpack(self, state: State, site: int) -> tuple[list[Source], tuple[int, ...]]:
        """Sources of read ``site``, and which of each source's reads it is."""
        written = self._written[site]
        if _fused(state):
            queries_RD = self.pseudo_queries * self.key_gains
            found = [absorb(None, value, queries_RD, site, 1, recompute=False) for value in state]
            return found, (0,) * len(written)
        if len(state) == 2:
            views = self._layout.views(state[1], len(written))
            return [Source(value, logits, ()) for value, logits in views], (site,) * len(written)
        with_ports = len(state) > 1 + 2 * len(written)
        sources, cursor = [], 1
        for origin in written:
            end = cursor + 2 + (2 * self._reads_of(origin) if with_ports else 0)
            sources.append(Source(state[cursor], state[cursor + 1], state[cursor + 2 : end]))
            cursor = end
        return sources, self._positions[site]


def _fused(state: State) -> bool:
    """Whether the state is that of a fused read: sources alone; others begin with the queries (R, D)."""
    return state[0].dim() == 3
