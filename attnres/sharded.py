"""Tensors of which every process holds a part."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """All of ``tensor``, gathered from the processes that hold parts of it: every one of them calls."""
    full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full
