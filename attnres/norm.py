"""RMSNorm with a hand-derived backward: eager ``nn.RMSNorm`` is several times slower on a CPU."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnres import kernels


class RMSNorm(nn.Module):
    """``x * (mean(x^2) + eps)^(-1/2) * gain`` over the last dimension; statistics in fp32 at least."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Normalised ``x_BTD``, in the type that the products after it compute in."""
        return rms_norm(x_BTD, self.gain)


def rms_norm(x_BTD: Float[Tensor, "B T D"], gain_D: Tensor) -> Float[Tensor, "B T D"]:
    """`RMSNorm` with the gain ``gain_D``."""
    y: Tensor = _RmsNorm.apply(x_BTD, gain_D, product_dtype(x_BTD))  # type: ignore[no-untyped-call]
    return y


def product_dtype(x: Tensor) -> torch.dtype:
    """The type that autocast would cast ``x`` to before a product; its own without autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, dtype: torch.dtype) -> Tensor:
        y, scale = kernels.norm_forward(x.reshape(-1, x.shape[-1]), gain, dtype)
        ctx.save_for_backward(x, gain, scale)
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain, scale = ctx.saved_tensors
        width = x.shape[-1]
        grad_x, grad_gain, _ = kernels.norm_backward(
            x.reshape(-1, width), gain, scale, grad_y.reshape(-1, width)
        )
        return grad_x.view(x.shape), grad_gain.to(gain.dtype), None
