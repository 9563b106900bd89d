"""What one core of this machine can do: matrix products and memory traffic, the ceilings of a roofline."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import number

REPEATS = 7


def best_seconds(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Fastest of some repetitions: a ceiling is what is reached undisturbed."""
    found = []
    for _ in range(repeats + 1):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found[1:])


def matmul_flops(dtype: torch.dtype, size: int = 1024) -> float:
    """FLOP/s of a square product of ``size``."""
    a, b = torch.randn(2, size, size, dtype=torch.float32).to(dtype)
    return 2 * size**3 / best_seconds(lambda: a @ b)


def read_bytes(tensors: int = 32, numel: int = 1 << 19) -> float:
    """Bytes/s of reading ``tensors`` of 2 MB once each (larger together than the core's own cache)."""
    pool = [torch.randn(numel) for _ in range(tensors)]
    seconds = best_seconds(lambda: [tensor.sum() for tensor in pool])
    return tensors * numel * 4 / seconds


def copy_bytes(tensors: int = 32, numel: int = 1 << 19) -> float:
    """Bytes/s read and written by copies of 2 MB tensors."""
    pool = [torch.randn(numel) for _ in range(tensors)]
    target = [torch.empty_like(tensor) for tensor in pool]
    seconds = best_seconds(lambda: [to.copy_(tensor) for to, tensor in zip(target, pool, strict=True)])
    return 2 * tensors * numel * 4 / seconds


def rows() -> list[dict[str, Any]]:
    return [
        number("ceiling: fp32 product, GFLOP/s", matmul_flops(torch.float32) / 1e9),
        number("ceiling: bf16 product, GFLOP/s", matmul_flops(torch.bfloat16) / 1e9),
        number("ceiling: read, GB/s", read_bytes() / 1e9),
        number("ceiling: copy (read + write), GB/s", copy_bytes() / 1e9),
    ]
