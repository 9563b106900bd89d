"""The depth-mixing operator: softmax attention of one pseudo-query over a list of sources.

    h = sum_i a_i v_i,   a = softmax_i(s_i),   s_i = q . v_i r_i,   q = pseudo_query * gain,
    r_i = (mean(v_i^2) + eps)^(-1/2)

Source: "Attention Residuals", arXiv 2603.15031, equations 2-4. Keys are normalised, values are not.
Statistics, softmax and the weighted sum are fp32 at least; the result is too.

Legend: n sources, B batch, T position, D width; a trailing X stands for the B x T positions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnres.norm import NORM_EPSILON


def reference_mix(
    sources: Sequence[Float[Tensor, "B T D"]], pseudo_query_D: Tensor, gain_D: Tensor
) -> Float[Tensor, "B T D"]:
    """The definition, line by line: stack, normalise, score, softmax, sum. `mix` is held to it."""
    values_nBTD = torch.stack([_wide(source) for source in sources])
    mean_square_nBT1 = values_nBTD.square().mean(-1, keepdim=True)
    keys_nBTD = values_nBTD * (mean_square_nBT1 + NORM_EPSILON).rsqrt() * gain_D
    weights_nBT = torch.einsum("d,nbtd->nbt", pseudo_query_D, keys_nBTD).softmax(0)
    return torch.einsum("nbt,nbtd->btd", weights_nBT, values_nBTD)


def inverse_rms(source_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
    """``(mean(v^2) + eps)^(-1/2)``, once per source and without a graph: `mix` differentiates through it."""
    with torch.no_grad():
        norm_BT = torch.linalg.vector_norm(_wide(source_BTD), dim=-1)
        scale_BT: Tensor = norm_BT.square_().div_(source_BTD.shape[-1]).add_(NORM_EPSILON).rsqrt_()
        return scale_BT


def mix(
    sources: Sequence[Float[Tensor, "B T D"]],
    inverse_rms_: Sequence[Float[Tensor, "B T"]],
    pseudo_query_D: Tensor,
    gain_D: Tensor,
) -> Float[Tensor, "B T D"]:
    """`reference_mix` without a stack: sources are read where they lie and saved by reference.

    Args:
        sources: tensors attended over, in order.
        inverse_rms_: `inverse_rms` of each.
        pseudo_query_D: learned query of this read.
        gain_D: gain of this read's key norm.
    """
    h_BTD: Tensor = _Mix.apply(pseudo_query_D, gain_D, *inverse_rms_, *sources)  # type: ignore[no-untyped-call]
    return h_BTD


class _Mix(torch.autograd.Function):
    """Forward and analytic backward of `mix`.

    With g = dL/dh and c_i = g . v_i: ds_i = a_i (c_i - sum_j a_j c_j),
    dv_i = a_i g + ds_i r_i (q - s_i r_i v_i / D), dq = sum_X sum_i ds_i r_i v_i.
    """

    @staticmethod
    def forward(ctx: Any, pseudo_query: Tensor, gain: Tensor, *rest: Tensor) -> Tensor:
        count = len(rest) // 2
        scales, values = rest[:count], rest[count:]
        query = pseudo_query * gain
        logits_nX = torch.stack(
            [
                (_wide(value) @ query).mul_(scale).flatten()
                for scale, value in zip(scales, values, strict=True)
            ]
        )
        weights_nX = logits_nX.softmax(0)
        mixed: Tensor | None = None
        for weight_X, value in zip(weights_nX, values, strict=True):
            weight = weight_X.view(value.shape[:-1]).unsqueeze(-1)
            mixed = weight * _wide(value) if mixed is None else mixed.addcmul_(weight, _wide(value))
        ctx.save_for_backward(pseudo_query, gain, logits_nX, weights_nX, *rest)
        assert mixed is not None
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pseudo_query, gain, logits_nX, weights_nX, *rest = ctx.saved_tensors
        count = len(rest) // 2
        scales, values = rest[:count], rest[count:]
        query, width = pseudo_query * gain, grad.shape[-1]
        along_nX = torch.stack([(grad * value).sum(-1).flatten() for value in values])
        grad_logits_nX = along_nX.sub_((along_nX * weights_nX).sum(0)).mul_(weights_nX)
        grad_query = torch.zeros_like(query)
        grad_values: list[Tensor | None] = []
        for index, (scale, value) in enumerate(zip(scales, values, strict=True)):
            grad_score_X = grad_logits_nX[index] * scale.flatten()  # ds r
            flat = _wide(value).reshape(-1, width)
            grad_query += grad_score_X @ flat
            if not ctx.needs_input_grad[2 + count + index]:
                grad_values.append(None)
                continue
            shrink_X = grad_score_X * logits_nX[index] * scale.flatten() / -width  # -ds s r^2 / D, s = logit
            grad_value = torch.outer(grad_score_X, query)
            grad_value.addcmul_(weights_nX[index].unsqueeze(-1), grad.reshape(-1, width))
            grad_value.addcmul_(shrink_X.unsqueeze(-1), flat)
            grad_values.append(grad_value.view_as(value).to(value.dtype))
        return grad_query * gain, grad_query * pseudo_query, *([None] * count), *grad_values


def _wide(tensor: Tensor) -> Tensor:
    """``tensor`` in fp32, or as it is if wider."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
