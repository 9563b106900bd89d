"""Depth mixing alone, forward and backward, with the norms that follow it.

Ours over the definition's (stack, normalise, einsum), over the plain residual, and beside the time that its
bytes take at the machine's ceiling.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnres.block_partition import partition
from attnres.depth_attention import DepthAttention
from attnres.mixing import reference_mix
from attnres.norm import RMSNorm
from benchmarks.ceilings import copy_bytes
from benchmarks.timing import interleave, number, ratio, row

TOKENS, TURNS = (8, 256), 9
CASES = {"w256 L24 block": (256, 24, 8), "w512 L16 block": (512, 16, 8), "w256 L24 full": (256, 24, 24)}
AT_LEAST = 3.0


class Contest:
    """Fixed sublayer outputs and gradients; each contestant forms and backs through every normalised read."""

    def __init__(self, width: int, num_sublayers: int, num_blocks: int) -> None:
        random = torch.Generator().manual_seed(0)
        count = num_sublayers + 1
        size = (*TOKENS, width)
        self.attention = DepthAttention(width, num_sublayers, partition(num_sublayers, num_blocks=num_blocks))
        with torch.no_grad():
            self.attention.pseudo_queries.normal_(0, 0.05, generator=random)
            self.attention.key_gains.fill_(1.0)
        self.outputs = [torch.randn(size, generator=random).requires_grad_() for _ in range(count)]
        self.gradients = [torch.randn(size, generator=random) for _ in range(count)]
        self.norm = RMSNorm(width)
        self.num_sublayers = num_sublayers

    def ours(self) -> list[Tensor]:
        state, reads = self.attention.start(self.outputs[0]), []
        for site in range(self.num_sublayers):
            reads.append(self.attention.read_normalised(state, site, self.norm.gain))
            state = self.attention.write(state, site, self.outputs[site + 1])
        return [*reads, self.attention.read_normalised(state, self.num_sublayers, self.norm.gain)]

    def definition(self) -> list[Tensor]:
        finished, running, reads = [self.outputs[0]], None, []
        queries, gains = self.attention.pseudo_queries, self.attention.key_gains
        for site in range(self.num_sublayers + 1):
            if site in self.attention.starts and running is not None:
                finished, running = [*finished, running], None
            sources = finished if running is None else [*finished, running]
            reads.append(self.norm(reference_mix(sources, queries[site], gains[site])))
            if site < self.num_sublayers:
                output = self.outputs[site + 1]
                running = output if running is None else running + output
        return reads

    def residual(self) -> list[Tensor]:
        total, reads = self.outputs[0], []
        for output in self.outputs[1:]:
            reads.append(self.norm(total))
            total = total + output
        return [*reads, self.norm(total)]

    def turn(self, reads_of: Callable[[], list[Tensor]]) -> Callable[[], None]:
        def run() -> None:
            leaves = [*self.outputs, self.norm.gain]
            reads = reads_of()
            torch.autograd.grad(reads, leaves, self.gradients)

        return run

    def extra_bytes(self) -> int:
        """Bytes that mixing moves beyond the plain residual, each tensor once a use, caches ignored.

        Forward and backward each read every source once a read. Per source, backward writes its gradient
        and reads the source, and reads the upstream gradient of a running sum.
        """
        pairs = sum(len(self.attention.sources(site)) for site in range(self.num_sublayers + 1))
        tensors = 2 * pairs + 3 * len(self.outputs)
        return tensors * self.outputs[0].numel() * 4


def rows() -> list[dict[str, Any]]:
    found = []
    bandwidth = copy_bytes()
    for name, case in CASES.items():
        contest = Contest(*case)
        contestants = {
            "ours": contest.turn(contest.ours),
            "definition": contest.turn(contest.definition),
            "residual": contest.turn(contest.residual),
        }
        times = interleave(contestants, turns=TURNS)
        own = ratio(times, "ours", "residual")
        found.append(
            row(
                f"mixing {name}: definition / ours",
                ratio(times, "definition", "ours"),
                AT_LEAST,
                at_least=True,
            )
        )
        found.append(row(f"mixing {name}: ours / plain residual", own))
        found.append(
            number(f"mixing {name}: ours beyond residual, ms", (own.seconds - own.baseline_seconds) * 1e3)
        )
        found.append(
            number(f"mixing {name}: its bytes at copy speed, ms", contest.extra_bytes() / bandwidth * 1e3)
        )
    return found
