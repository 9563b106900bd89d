"""Row kernels: each formula once in C for CPUs (`native`) and once in plain torch (`plain`).

A call takes the C kernel where it can serve the tensors and plain torch elsewhere; both give the same
numbers to rounding, which tests hold them to. The kernels are leaves: they know no autograd.

Legend: X tokens, D width, l reads, n sources.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from attnres.constants import NORM_EPSILON
from attnres.kernels import native, plain
from attnres.kernels.native import address, addresses, code, codes


def backend() -> str:
    """``c`` or ``torch``: what CPU tensors are served by here."""
    return "c" if native._enabled and native.available() else "torch"


@contextmanager
def only_torch() -> Iterator[None]:
    """Within, every kernel is the plain torch one."""
    former = native.enable(False)
    try:
        yield
    finally:
        native.enable(former)


def absorb(running_XD: Tensor | None, y_XD: Tensor, queries_lD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """New source v = running + y (y itself without one), inverse RMS (X), logits (l, X)."""
    library = native.serving([running_XD, y_XD], [queries_lD])
    if library is None or y_XD.shape[-1] > native.MAX_WIDTH:
        return plain.absorb(running_XD, y_XD, queries_lD)
    (tokens, width), reads = y_XD.shape, len(queries_lD)
    running_XD = None if running_XD is None else running_XD.contiguous()
    y_XD, queries_lD = y_XD.contiguous(), queries_lD.contiguous()
    v_XD = y_XD if running_XD is None else torch.empty_like(running_XD, dtype=queries_lD.dtype)
    r_X, logits_lX = queries_lD.new_empty(tokens), queries_lD.new_empty(reads, tokens)
    library.run(
        "absorb",
        tokens,
        tokens,
        width,
        reads,
        NORM_EPSILON,
        address(running_XD),
        0 if running_XD is None else code(running_XD),
        address(y_XD),
        code(y_XD),
        address(queries_lD),
        address(v_XD),
        address(r_X),
        address(logits_lX),
    )
    return v_XD, r_X, logits_lX


def mix(
    sources: Sequence[Tensor], logits: Sequence[Tensor], positions: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """h = softmax-weighted sum of ``sources``, and the log-sum-exp of the logits (X).

    Args:
        sources: n tensors (..., D), contiguous.
        logits: of each source (l, X); this read's are in row ``positions[i]``.
        positions: rows.
    """
    library = _serving_mix(sources, logits[0])
    if library is None:
        return plain.mix(sources, [rows[index] for rows, index in zip(logits, positions, strict=True)])
    h = sources[0].new_empty(sources[0].shape, dtype=logits[0].dtype)
    lse_X = logits[0].new_empty(logits[0].shape[-1])
    _run_mix(library, sources, logits, positions, h, lse_X)
    return h, lse_X


def mix_and_norm(
    sources: Sequence[Tensor],
    logits: Sequence[Tensor],
    positions: Sequence[int],
    gain_D: Tensor,
    dtype: torch.dtype,
    *,
    keep_h: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """`mix` and the RMSNorm of its result in one pass: y as ``dtype``, its r, lse, and h if it is kept."""
    library = _serving_mix(sources, logits[0], gain_D)
    if library is None or dtype not in (logits[0].dtype, torch.bfloat16):
        mixed, lse_X = mix(sources, logits, positions)
        y_XD, r_X = norm_forward(mixed.reshape(-1, mixed.shape[-1]), gain_D, dtype)
        return y_XD.view(mixed.shape), r_X, lse_X, mixed if keep_h else None
    shape, like = sources[0].shape, logits[0]
    h = like.new_empty(shape) if keep_h else None
    statistics_2X = like.new_empty(2, like.shape[-1])
    lse_X, r_X = statistics_2X
    y = like.new_empty(shape, dtype=dtype)
    _run_mix(library, sources, logits, positions, h, lse_X, gain_D, y, r_X)
    return y, r_X, lse_X, h


def remix(sources: Sequence[Tensor], query_D: Tensor) -> Tensor:
    """h of `mix` from the sources (..., D) and the read's query alone: for a backward that kept no logits."""
    library = _serving_mix(sources, query_D)
    if library is None:
        return plain.remix(sources, query_D)
    shape = sources[0].shape
    h = query_D.new_empty(shape)
    library.run(
        "remix",
        h.numel() // shape[-1],
        shape[-1],
        len(sources),
        NORM_EPSILON,
        addresses(sources),
        codes(sources),
        address(query_D.contiguous()),
        address(h),
    )
    return h


def _run_mix(
    library: native.Library,
    sources: Sequence[Tensor],
    logits: Sequence[Tensor],
    positions: Sequence[int],
    h: Tensor | None,
    lse_X: Tensor,
    gain_D: Tensor | None = None,
    y: Tensor | None = None,
    r_X: Tensor | None = None,
) -> None:
    tokens = lse_X.shape[0]
    stride = tokens * lse_X.element_size()
    library.run(
        "mix",
        tokens,
        sources[0].shape[-1],
        len(sources),
        NORM_EPSILON,
        addresses(sources),
        codes(sources),
        native.row_addresses(logits, positions, stride),
        address(gain_D),
        address(h),
        address(lse_X),
        address(y),
        0 if y is None else code(y),
        address(r_X),
    )


def _serving_mix(sources: Sequence[Tensor], *real: Tensor) -> native.Library | None:
    """The sources of one read are made alike, so the first speaks for all but their element type."""
    fits = len(sources) <= native.MAX_SOURCES and sources[0].shape[-1] <= native.MAX_WIDTH
    whole = all(source.is_contiguous() for source in sources)
    return native.serving([sources[0]], real) if fits and whole else None


def gather(
    v_XD: Tensor,
    r_X: Tensor,
    logits_lX: Tensor,
    queries_lD: Tensor,
    grads: Sequence[Tensor],
    stats: Sequence[Tensor],
    upstream_XD: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradient of source v from the reads that attended over it, and ds r of each read (l, X).

    Args:
        v_XD: the source, with its inverse RMS ``r_X`` and logits of these reads.
        r_X: inverse RMS.
        logits_lX: logits of these reads.
        queries_lD: effective queries of these reads.
        grads: dL/dh of each read, (X, D).
        stats: of each read (2, X): log-sum-exp, and dL/dh . h.
        upstream_XD: gradient that reached v otherwise (it went into a later partial sum).
    """
    library = native.serving([v_XD], [r_X, logits_lX, queries_lD, *grads, *stats])
    fits = len(grads) <= native.MAX_SOURCES and v_XD.shape[-1] <= native.MAX_WIDTH
    if library is None or not fits:
        return plain.gather(v_XD, r_X, logits_lX, queries_lD, grads, stats, upstream_XD)
    tokens, width = v_XD.shape
    grads = [grad.contiguous() for grad in grads]
    stats = [stat.contiguous() for stat in stats]
    if upstream_XD is not None:
        upstream_XD = upstream_XD.to(queries_lD.dtype).contiguous()
    queries_lD, logits_lX, v_XD = queries_lD.contiguous(), logits_lX.contiguous(), v_XD.contiguous()
    dv_XD, dsr_lX = torch.empty_like(v_XD), torch.empty_like(logits_lX)
    library.run(
        "gather",
        tokens,
        tokens,
        width,
        len(grads),
        address(v_XD),
        code(v_XD),
        address(r_X),
        address(logits_lX),
        address(queries_lD),
        addresses(grads),
        addresses(stats),
        address(upstream_XD),
        address(dv_XD),
        address(dsr_lX),
    )
    return dv_XD, dsr_lX


def norm_forward(x_XD: Tensor, gain_D: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """RMSNorm ``x r gain`` as ``dtype``, and r (X)."""
    library = native.serving([x_XD], [gain_D])
    if library is None or dtype not in (gain_D.dtype, torch.bfloat16) or x_XD.shape[-1] > native.MAX_WIDTH:
        return plain.norm_forward(x_XD, gain_D, dtype)
    tokens, width = x_XD.shape
    x_XD = x_XD.contiguous()
    y_XD, r_X = torch.empty_like(x_XD, dtype=dtype), gain_D.new_empty(tokens)
    library.run(
        "norm_forward",
        tokens,
        width,
        NORM_EPSILON,
        address(x_XD),
        code(x_XD),
        address(gain_D),
        address(y_XD),
        code(y_XD),
        address(r_X),
    )
    return y_XD, r_X


def norm_backward(x_XD: Tensor, gain_D: Tensor, r_X: Tensor, gy_XD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dL/dx, dL/dgain and dL/dx . x (X) of `norm_forward`."""
    library = native.serving([x_XD, gy_XD], [gain_D, r_X])
    if library is None or x_XD.shape[-1] > native.MAX_WIDTH:
        return plain.norm_backward(x_XD, gain_D, r_X, gy_XD)
    tokens, width = x_XD.shape
    x_XD, gy_XD = x_XD.contiguous(), gy_XD.contiguous()
    dx_XD, along_X = torch.empty_like(x_XD), torch.empty_like(r_X)
    dgain_D = torch.zeros_like(gain_D)
    library.run_sum(
        "norm_backward",
        tokens,
        dgain_D,
        lambda dgain: (
            width,
            address(x_XD),
            code(x_XD),
            address(gain_D),
            address(r_X),
            address(gy_XD),
            code(gy_XD),
            address(dx_XD),
            address(dgain),
            address(along_X),
        ),
    )
    return dx_XD, dgain_D, along_X


def swiglu_forward(gate_up: Tensor) -> Tensor:
    """``silu(gate) up`` of rows [gate, up]."""
    library = native.serving([gate_up])
    if library is None or gate_up.shape[-1] > 2 * native.MAX_WIDTH:
        return plain.swiglu_forward(gate_up)
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    y = gate_up.new_empty(*gate_up.shape[:-1], width)
    tokens = y.numel() // width
    library.run("swiglu_forward", tokens, width, address(gate_up), code(gate_up), address(y))
    return y


def swiglu_backward(gate_up: Tensor, gy: Tensor) -> Tensor:
    """dL/d[gate, up] of `swiglu_forward`."""
    library = native.serving([gate_up, gy])
    if library is None or gate_up.dtype != gy.dtype or gate_up.shape[-1] > 2 * native.MAX_WIDTH:
        return plain.swiglu_backward(gate_up, gy)
    gate_up, gy = gate_up.contiguous(), gy.contiguous()
    width = gy.shape[-1]
    grad = torch.empty_like(gate_up)
    tokens = gy.numel() // width
    library.run("swiglu_backward", tokens, width, address(gate_up), address(gy), code(gy), address(grad))
    return grad


def rotate(qkv_BT3HC: Tensor, cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
    """Queries and keys turned by their positions' angles; the C kernel works *in place*."""
    B, T, _, heads, channels = qkv_BT3HC.shape
    library = native.serving([qkv_BT3HC], [cosine_TC, sine_TC])
    if library is None or not qkv_BT3HC.is_contiguous() or channels > native.MAX_WIDTH:
        return plain.rotate(qkv_BT3HC, cosine_TC, sine_TC)
    library.run(
        "rotate",
        B * T,
        T,
        heads,
        channels,
        address(qkv_BT3HC),
        code(qkv_BT3HC),
        address(cosine_TC),
        address(sine_TC),
    )
    return qkv_BT3HC


def rotate_backward(grads_BHTC: tuple[Tensor, Tensor, Tensor], cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
    """Gradient of qkv (B, T, 3, H, C) from those of the rotated q and k, and of v."""
    B, heads, T, channels = grads_BHTC[0].shape
    library = native.serving(grads_BHTC, [cosine_TC, sine_TC])
    whole = all(grad.stride(-1) == 1 and grad.dtype == grads_BHTC[0].dtype for grad in grads_BHTC)
    if library is None or not whole or channels > native.MAX_WIDTH:
        return plain.rotate_backward(grads_BHTC, cosine_TC, sine_TC)
    grad_BT3HC = grads_BHTC[0].new_empty(B, T, 3, heads, channels)
    strides = (ctypes.c_long * 9)(*[grad.stride(axis) for grad in grads_BHTC for axis in range(3)])
    library.run(
        "rotate_backward",
        B * T,
        T,
        heads,
        channels,
        addresses(grads_BHTC),
        strides,
        code(grad_BT3HC),
        address(cosine_TC),
        address(sine_TC),
        address(grad_BT3HC),
    )
    return grad_BT3HC
