"""The two sublayers of a Transformer block, each with the norm its input passes; no biases anywhere.

Legend: B batch, T position, D width, H heads, C channels of a head, M hidden channels of the MLP.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnres import kernels
from attnres.norm import RMSNorm
from attnres.shape import ModelShape

ROTARY_BASE = 10_000.0


class Matrix(nn.Module):
    """``y = x W^T`` without a bias; the weight is (out, in)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_out, width_in))

    def forward(self, x: Tensor) -> Tensor:
        """Product over the last dimension."""
        return F.linear(x, self.weight)


def rotary_table(seq_len: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the rotary angles, each (T, C).

    Channel c and c + C/2 form a plane turned by ``position * base^(-2c/C)`` (Su et al., arXiv
    2104.09864); the sines of the first half carry the minus sign of the rotation.
    """
    channel = torch.arange(0, head_width, 2, dtype=torch.float64, device="cpu")
    position = torch.arange(seq_len, dtype=torch.float64, device="cpu")
    angle = position[:, None] * ROTARY_BASE ** (-channel / head_width)
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat([cosine, cosine], -1).float(), torch.cat([-sine, sine], -1).float()


class _Rotate(torch.autograd.Function):
    """q, k, v of qkv, positions rotated into q and k. Works in the memory of qkv where the kernel can:
    qkv is the result of a product, which does not keep it."""

    @staticmethod
    def forward(
        ctx: Any, qkv_BT3HC: Tensor, cosine_TC: Tensor, sine_TC: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cosine_TC, sine_TC)
        q, k, v = kernels.rotate(qkv_BT3HC, cosine_TC, sine_TC).permute(2, 0, 3, 1, 4)
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads_BHTC: Tensor) -> tuple[Tensor, None, None]:
        q, k, v = grads_BHTC
        return kernels.rotate_backward((q, k, v), *ctx.saved_tensors), None, None


@dataclass
class WholeSequences:
    """How positions see each other where whole sequences are given: causally, and nothing is kept."""

    cosine_TC: Tensor
    sine_TC: Tensor

    def attend(self, layer: int, q_BHTC: Tensor, k_BHTC: Tensor, v_BHTC: Tensor) -> Tensor:  # noqa: ARG002
        """Values mixed over the positions up to each."""
        return F.scaled_dot_product_attention(q_BHTC, k_BHTC, v_BHTC, is_causal=True)


class Positions(Protocol):
    """How positions see each other: `WholeSequences`, or a cache (`attnres.inference`)."""

    cosine_TC: Tensor
    """Cosines of the rotary angles of the given positions."""
    sine_TC: Tensor
    """Sines, signed."""

    def attend(self, layer: int, q_BHTC: Tensor, k_BHTC: Tensor, v_BHTC: Tensor) -> Tensor:
        """Values mixed over positions, (B, H, T, C), for attention number ``layer``."""


class Attention(nn.Module):
    """Causal self-attention with rotary positions, of the normalised input; ``layer`` counts attentions."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = shape.num_heads
        self.norm = RMSNorm(shape.width)
        self.qkv = Matrix(shape.width, 3 * shape.width)
        self.out = Matrix(shape.width, shape.width)

    def forward(self, x_BTD: Float[Tensor, "B T D"], positions: Positions) -> Float[Tensor, "B T D"]:
        """Output of the sublayer for the input that `norm` has normalised, to be written to the stream."""
        B, T, D = x_BTD.shape
        qkv_BT3HC = self.qkv(x_BTD).view(B, T, 3, self.num_heads, D // self.num_heads)
        angles = positions.cosine_TC, positions.sine_TC
        mixed_BHTC = positions.attend(self.layer, *_Rotate.apply(qkv_BT3HC, *angles))  # type: ignore[no-untyped-call]
        y_BTD: Tensor = self.out(mixed_BHTC.transpose(1, 2).reshape(B, T, D))
        return y_BTD


class _SwiGLU(torch.autograd.Function):
    """silu(gate) up of rows [gate, up], keeping those rows only."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return kernels.swiglu_forward(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        return kernels.swiglu_backward(gate_up, grad)


class MLP(nn.Module):
    """SwiGLU: ``W_out (silu(W_gate x) * W_up x)`` (Shazeer, arXiv 2002.05202), of the normalised input."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = RMSNorm(shape.width)
        self.gate_up = Matrix(shape.width, 2 * shape.mlp_width)
        self.out = Matrix(shape.mlp_width, shape.width)

    def forward(self, x_BTD: Float[Tensor, "B T D"], positions: Positions) -> Float[Tensor, "B T D"]:  # noqa: ARG002
        """Output of the sublayer for the input that `norm` has normalised; positions play no part."""
        y_BTD: Tensor = self.out(_SwiGLU.apply(self.gate_up(x_BTD)))  # type: ignore[no-untyped-call]
        return y_BTD
