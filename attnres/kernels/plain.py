"""The kernels' formulas in plain torch: for GPUs, for tracing, and where there is no C compiler.

Legend: X tokens, D width, l reads, n sources. Statistics and sums are fp32 at least.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.constants import NORM_EPSILON


def wide(tensor: Tensor) -> Tensor:
    """``tensor`` in fp32, or as it is if wider."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def inverse_rms(x: Tensor) -> Tensor:
    """``(mean(x^2) + eps)^(-1/2)`` over the last dimension."""
    scale: Tensor = torch.linalg.vector_norm(x, dim=-1).square().div(x.shape[-1]).add(NORM_EPSILON).rsqrt()
    return scale


def absorb(running_XD: Tensor | None, y_XD: Tensor, queries_lD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """New source v = running + y, its inverse RMS and its logits (l, X)."""
    v_XD = y_XD if running_XD is None else wide(running_XD) + wide(y_XD)
    r_X = inverse_rms(wide(v_XD))
    return v_XD, r_X, (queries_lD @ wide(v_XD).T) * r_X


def mix(sources: Sequence[Tensor], logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """h = softmax-weighted sum of the sources (..., D), and the log-sum-exp of their logits (X)."""
    shape = sources[0].shape
    logits_nX = torch.stack(list(logits))
    lse_X = logits_nX.logsumexp(0)
    weights = (logits_nX - lse_X).exp().view(-1, *shape[:-1], 1)
    h = weights[0] * wide(sources[0])
    for weight, source in zip(weights[1:], sources[1:], strict=True):
        h = h.addcmul_(weight, wide(source))
    return h, lse_X


def remix(sources: Sequence[Tensor], query_D: Tensor) -> Tensor:
    """h of `mix` from the sources and the read's query."""
    logits = [(wide(v) @ query_D).flatten() * inverse_rms(wide(v)).flatten() for v in sources]
    return mix(sources, logits)[0]


def gather(
    v_XD: Tensor,
    r_X: Tensor,
    logits_lX: Tensor,
    queries_lD: Tensor,
    grads: Sequence[Tensor],
    stats: Sequence[Tensor],
    upstream_XD: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradient of a source from its reads, and ds r of each read (l, X); formulas in kernels.c."""
    value_XD = wide(v_XD)
    stats_l2X = torch.stack(list(stats))
    weights_lX = (logits_lX - stats_l2X[:, 0]).exp()
    along_lX = torch.stack([(g_XD * value_XD).sum(-1) for g_XD in grads])
    ds_lX = weights_lX * (along_lX - stats_l2X[:, 1])
    dsr_lX = ds_lX * r_X
    dv_XD = dsr_lX.T @ queries_lD
    for weight_X, g_XD in zip(weights_lX, grads, strict=True):
        dv_XD = dv_XD.addcmul_(weight_X.unsqueeze(-1), g_XD)
    shrink_X = (ds_lX * logits_lX).sum(0) * r_X.square() / -value_XD.shape[-1]
    dv_XD = dv_XD.addcmul_(shrink_X.unsqueeze(-1), value_XD)
    if upstream_XD is not None:
        dv_XD += upstream_XD
    return dv_XD.to(v_XD.dtype), dsr_lX


def norm_forward(x_XD: Tensor, gain_D: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x r gain as ``dtype``, and r."""
    r_X = inverse_rms(wide(x_XD))
    return (wide(x_XD) * r_X.unsqueeze(-1) * gain_D).to(dtype), r_X


def norm_backward(x_XD: Tensor, gain_D: Tensor, r_X: Tensor, gy_XD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dgain and dx . x (X); formulas in kernels.c."""
    value_XD, gy_XD = wide(x_XD), wide(gy_XD)
    normalised_XD = value_XD * r_X.unsqueeze(-1)
    dgain_D = (gy_XD * normalised_XD).sum(0)
    scaled_XD = gy_XD * gain_D
    pull_X1 = (scaled_XD * normalised_XD).mean(-1, keepdim=True)
    dx_XD = (scaled_XD - normalised_XD * pull_X1) * r_X.unsqueeze(-1)
    return dx_XD.to(x_XD.dtype), dgain_D, (dx_XD * value_XD).sum(-1)


def swiglu_forward(gate_up: Tensor) -> Tensor:
    """silu(gate) up."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def swiglu_backward(gate_up: Tensor, gy: Tensor) -> Tensor:
    """Gradient of [gate, up]."""
    gate, up = gate_up.chunk(2, -1)
    sigma = gate.sigmoid()
    return torch.cat([gy * up * sigma * (1 + gate * (1 - sigma)), gy * gate * sigma], -1)


def rotate(qkv_BT3HC: Tensor, cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
    """Queries and keys turned by their positions' angles; values as they are."""
    turned = qkv_BT3HC[:, :, :2]
    cosine, sine = cosine_TC[:, None, None], sine_TC[:, None, None]
    turned = turned * cosine + turned.roll(turned.shape[-1] // 2, -1) * sine
    return torch.cat([turned.to(qkv_BT3HC.dtype), qkv_BT3HC[:, :, 2:]], 2)


def rotate_backward(grads_BHTC: tuple[Tensor, Tensor, Tensor], cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
    """Gradient of qkv: the transposed rotation."""
    grad_BT3HC = torch.stack([grad.transpose(1, 2) for grad in grads_BHTC], 2)
    turned = grad_BT3HC[:, :, :2]
    cosine, sine = cosine_TC[:, None, None], sine_TC[:, None, None]
    back = turned * cosine + (turned * sine).roll(-(turned.shape[-1] // 2), -1)
    return torch.cat([back.to(grad_BT3HC.dtype), grad_BT3HC[:, :, 2:]], 2)
