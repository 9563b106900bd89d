"""Reads by flash-linear-attention's fused operator on CUDA: optional, and used only where it is right.

The operator (fla.ops.attnres, from version 0.5.2) does one read in one kernel, forward and backward. It is
taken only if the package is installed and, on this device and for this width, gives what the definition
(`attnres.mixing.reference_mix`) gives: output and every gradient. Otherwise nothing changes.
"""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import torch
from jaxtyping import Float
from torch import Tensor

from attnres.constants import NORM_EPSILON
from attnres.mixing import reference_mix

PACKAGE, MODULE = "flash-linear-attention", "fla.ops.attnres"
CHECKED_SOURCES = (1, 2, 9)
TOLERANCE = 2e-5
"""Of the largest value of a tensor. The definition in fp32 is this near to itself in fp64, one whose query is
off by 1 % is not (tests/attnres/test_fused_reads.py)."""

LEAST = 1e-3
"""Values below it are compared as if they were this large: the query of one source has gradient zero."""

Read = Callable[[Sequence[Tensor], Tensor, Tensor], Tensor]
"""(sources of (B, T, D), pseudo_query (D), key gain (D)) -> h (B, T, D), all fp32."""

logger = logging.getLogger(__name__)


def find_read(device: torch.device, width: int) -> Read | None:
    """The fused read for tensors of ``width`` channels on ``device``, or None where it does not serve."""
    return _found(str(device), width) if device.type == "cuda" else None


def name(device: torch.device, width: int) -> str | None:
    """What a record calls the fused read: ``fla 0.5.2``; None where it does not serve."""
    return f"fla {version(PACKAGE)}" if find_read(device, width) is not None else None


@lru_cache
def _found(device: str, width: int) -> Read | None:
    try:
        version(PACKAGE)
        operator = import_module(MODULE).fused_attnres
    except (PackageNotFoundError, ImportError, AttributeError):
        return None

    def read(sources: Sequence[Tensor], query_D: Tensor, gain_D: Tensor) -> Float[Tensor, "B T D"]:
        h_BTD: Tensor = operator(query_D, list(sources), gain_D, rms_eps=NORM_EPSILON)
        return h_BTD

    gap = largest_gap(read, torch.device(device), width)
    if gap > TOLERANCE:
        logger.warning(
            "%s %s: its fused read is off by %.2g of the largest value on %s at width %d; not used",
            *(PACKAGE, version(PACKAGE), gap, device, width),
        )
        return None
    return read


def largest_gap(read: Read, device: torch.device, width: int) -> float:
    """Largest difference of ``read`` and its gradients from the definition's in fp64, over the largest value.

    Sources of sizes 0.1 to 10, random queries and gains. Infinite where a value is not finite.
    """
    worst = 0.0
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for count in CHECKED_SOURCES:
            tensors, upstream = _problem(count, width)
            found = _with_gradients(read, [tensor.to(device) for tensor in tensors], upstream.to(device))
            wanted = _with_gradients(reference_mix, [t.double() for t in tensors], upstream.double())
            for one, other in zip(found, wanted, strict=True):
                gap = (one.double().cpu() - other).abs().max() / other.abs().max().clamp_min(LEAST)
                worst = max(worst, gap.item() if bool(gap.isfinite()) else float("inf"))
    return worst


def _problem(count: int, width: int) -> tuple[list[Tensor], Tensor]:
    """Sources, query, gain, and dL/dh."""
    generator = torch.Generator().manual_seed(count)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    sources = [normal(2, 3, width) * scale for scale in torch.logspace(-1, 1, count).tolist()]
    return [*sources, normal(width) / width**0.5, normal(width)], normal(2, 3, width)


def _with_gradients(read: Read, tensors: list[Tensor], upstream: Tensor) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    h = read(leaves[:-2], leaves[-2], leaves[-1])
    return [h.detach(), *torch.autograd.grad(h, leaves, upstream)]
