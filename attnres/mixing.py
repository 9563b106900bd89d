"""The depth-mixing operator: softmax attention of one pseudo-query over a list of sources.

    h = sum_i a_i v_i,   a = softmax_i(s_i),   s_i = q . v_i r_i,   q = pseudo_query * gain,
    r_i = (mean(v_i^2) + eps)^(-1/2)

Source: "Attention Residuals", arXiv 2603.15031, equations 2-4. Keys are normalised, values are not.
Statistics, softmax and the weighted sum are fp32 at least; the result is too.

How it is fast. A read needs only the sources' logits, and a logit depends on nothing but its source and a
query, so `absorb` computes them when a source is made, while it is in cache. A read is then one pass over
the sources. Backward is turned round: a read does not add to the gradients of its sources (three passes a
source and read) but *posts* dL/dh to them, and each source gathers all it was posted in one pass, when the
last of its reads has run. The posts travel through autograd as the gradients of `ports`, outputs of
`absorb` without storage that only one read takes, so nothing is shared between graphs: checkpointing,
several forward passes before a backward, and partial backward passes work as for any operator.

Legend: n sources, B batch, T position, D width, X tokens (B T), R reads of the model, l reads of one source.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnres import kernels
from attnres.constants import NORM_EPSILON
from attnres.kernels.plain import wide
from attnres.norm import product_dtype


def reference_mix(
    sources: Sequence[Float[Tensor, "B T D"]], pseudo_query_D: Tensor, gain_D: Tensor
) -> Float[Tensor, "B T D"]:
    """The definition, line by line: stack, normalise, score, softmax, sum. Slow; tests hold `read` to it."""
    values_nBTD = torch.stack([wide(source) for source in sources])
    mean_square_nBT1 = values_nBTD.square().mean(-1, keepdim=True)
    keys_nBTD = values_nBTD * (mean_square_nBT1 + NORM_EPSILON).rsqrt() * gain_D
    weights_nBT = torch.einsum("d,nbtd->nbt", pseudo_query_D, keys_nBTD).softmax(0)
    return torch.einsum("nbt,nbtd->btd", weights_nBT, values_nBTD)


class Source(NamedTuple):
    """A tensor that reads attend over, with what its reads need.

    ``ports``: for each read that may attend over it, two tensors without storage that carry dL/dh (B, T, D)
    and the read's statistics (2, X) back to the source; empty where no gradient is wanted.
    """

    value_BTD: Tensor
    logits_lX: Tensor
    ports: tuple[Tensor, ...]


def absorb(
    running_BTD: Float[Tensor, "B T D"] | None,
    y_BTD: Float[Tensor, "B T D"],
    queries_RD: Float[Tensor, "R D"],
    first_read: int,
    num_reads: int,
    *,
    recompute: bool,
) -> Source:
    """The source ``running + y`` (or ``y`` alone) for ``num_reads`` reads from ``first_read`` on.

    With ``recompute``, its logits are computed again in backward, not kept.
    """
    if not torch.is_grad_enabled():
        return _absorb_without_gradient(running_BTD, y_BTD, queries_RD[first_read : first_read + num_reads])
    value, logits, *ports = _Absorb.apply(  # type: ignore[no-untyped-call]
        running_BTD, y_BTD, queries_RD, first_read, num_reads, recompute
    )
    return Source(value, logits, tuple(ports))


def _absorb_without_gradient(running_BTD: Tensor | None, y_BTD: Tensor, queries_lD: Tensor) -> Source:
    width = y_BTD.shape[-1]
    flat = None if running_BTD is None else running_BTD.reshape(-1, width)
    value_XD, _, logits_lX = kernels.absorb(flat, y_BTD.reshape(-1, width), wide(queries_lD))
    return Source(value_XD.view(y_BTD.shape), logits_lX, ())


def read(sources: Sequence[Source], positions: Sequence[int]) -> Float[Tensor, "B T D"]:
    """h of the read that is number ``positions[i]`` among the reads of source i."""
    h_BTD: Tensor = _Read.apply(positions, *_tensors(sources, positions))  # type: ignore[no-untyped-call]
    return h_BTD


def read_normalised(
    sources: Sequence[Source], positions: Sequence[int], gain_D: Tensor, query_D: Tensor | None = None
) -> Float[Tensor, "B T D"]:
    """RMSNorm of `read` in the same pass. Given its query, h is mixed again in backward, not kept."""
    dtype = product_dtype(gain_D)
    y_BTD: Tensor = _ReadNormalised.apply(  # type: ignore[no-untyped-call]
        gain_D, dtype, query_D, positions, *_tensors(sources, positions)
    )
    return y_BTD


def _tensors(sources: Sequence[Source], positions: Sequence[int]) -> list[Tensor]:
    """What a read takes: values, logits, and this read's ports."""
    ports = [
        port
        for source, position in zip(sources, positions, strict=True)
        for port in source.ports[2 * position : 2 * position + 2]
    ]
    return [*(source.value_BTD for source in sources), *(source.logits_lX for source in sources), *ports]


class _Absorb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        running: Tensor | None,
        y: Tensor,
        queries: Tensor,
        first: int,
        count: int,
        recompute: bool,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        width = y.shape[-1]
        chosen = wide(queries[first : first + count])
        flat = None if running is None else running.reshape(-1, width)
        value, scale, logits = kernels.absorb(flat, y.reshape(-1, width), chosen)
        ctx.first, ctx.y_dtype = first, y.dtype
        ctx.running_dtype = None if running is None else running.dtype
        ctx.mark_non_differentiable(logits)
        out = y.contiguous().view_as(y) if running is None else value.view(y.shape)
        ctx.save_for_backward(out, queries, *(() if recompute else (scale, logits)))
        zero = logits.new_zeros(())
        ports = [zero.expand(size) for _ in range(count) for size in (y.shape, (2, len(scale)))]
        return out, logits, *ports

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, _: None, *posts: Tensor | None) -> tuple[Any, ...]:
        out, queries, *statistics = ctx.saved_tensors
        width = out.shape[-1]
        kept = [index for index in range(len(posts) // 2) if posts[2 * index] is not None]
        grads = [posts[2 * index].reshape(-1, width) for index in kept]  # type: ignore[union-attr]
        stats: list[Any] = [posts[2 * index + 1] for index in kept]
        if upstream is not None:
            upstream = upstream.reshape(-1, width)
        if not kept:
            return *_to_both(ctx, None if upstream is None else upstream.view_as(out)), *[None] * 4
        rows = slice(ctx.first + kept[0], ctx.first + kept[-1] + 1)
        whole = len(kept) == kept[-1] + 1 - kept[0]
        reads = wide(queries[rows] if whole else queries[ctx.first :][kept])
        value = out.reshape(-1, width)
        if statistics:
            scale, logits = statistics
            chosen = logits[kept[0] : kept[-1] + 1] if whole else logits[kept]
        else:
            scale, chosen = kernels.absorb(None, value, reads)[1:]
        grad_value, dsr = kernels.gather(value, scale, chosen, reads, grads, stats, upstream)
        grad_queries = torch.zeros_like(queries)
        grad_queries[rows if whole else [ctx.first + index for index in kept]] = (dsr @ wide(value)).to(
            queries.dtype
        )
        return *_to_both(ctx, grad_value.view_as(out)), grad_queries, None, None, None


def _to_both(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of the sum for its two terms, each in its own type."""
    if grad is None:
        return None, None
    return None if ctx.running_dtype is None else grad.to(ctx.running_dtype), grad.to(ctx.y_dtype)


def _posts(count: int, length: int, grad: Tensor, stats: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of `_tensors`: nothing for ``count`` values and as many logits, the post for every port."""
    ports = length - 2 * count
    return (*[None] * (2 * count), *([grad, stats] * (ports // 2)))


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, positions: Sequence[int], *rest: Tensor) -> Tensor:
        ctx.count, ctx.length = len(positions), len(rest)
        values, logits = rest[: ctx.count], rest[ctx.count : 2 * ctx.count]
        h, lse = kernels.mix(values, logits, positions)
        ctx.save_for_backward(h, lse)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        h, lse = ctx.saved_tensors
        stats = torch.stack([lse, (grad * h).sum(-1).flatten()])
        return None, *_posts(ctx.count, ctx.length, grad, stats)


class _ReadNormalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gain: Tensor,
        dtype: torch.dtype,
        query: Tensor | None,
        positions: Sequence[int],
        *rest: Tensor,
    ) -> Tensor:
        ctx.positions, ctx.length = positions, len(rest)
        count = len(positions)
        values, logits = rest[:count], rest[count : 2 * count]
        y, scale, lse, h = kernels.mix_and_norm(values, logits, positions, gain, dtype, keep_h=query is None)
        kept = [query, *values] if h is None else [h]
        ctx.save_for_backward(gain, scale, lse, *kept)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Any, ...]:
        gain, scale, lse, *kept = ctx.saved_tensors
        count, width = len(ctx.positions), grad_y.shape[-1]
        h = kept[0] if len(kept) == 1 else kernels.remix(kept[1:], wide(kept[0]))
        grad_h, grad_gain, along = kernels.norm_backward(
            h.view(-1, width), gain, scale, grad_y.reshape(-1, width)
        )
        stats = torch.stack([lse, along])
        posts = _posts(count, ctx.length, grad_h.view(h.shape), stats)
        return grad_gain, None, None, None, *posts
