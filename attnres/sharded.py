"""Tensors of which every process holds a part."""

import sys

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """All of ``tensor``, gathered from the processes that hold parts of it: every one of them calls."""
    distributed = sys.modules.get("torch.distributed.tensor")  # importing it takes half a second
    if distributed is None or not isinstance(tensor, distributed.DTensor):
        return tensor
    full: Tensor = tensor.full_tensor()
    return full
