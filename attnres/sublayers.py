"""The two sublayers of a Transformer block, each with its own pre-norm inside; no biases anywhere.

Legend: B batch, T position, D width, H heads, C channels of a head, M hidden channels of the MLP.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

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


def rotate(x_BHTC: Tensor, cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
    """Rotary position embedding of queries or keys."""
    half = x_BHTC.shape[-1] // 2
    return x_BHTC * cosine_TC.to(x_BHTC.dtype) + x_BHTC.roll(half, -1) * sine_TC.to(x_BHTC.dtype)


class Attention(nn.Module):
    """Pre-norm causal self-attention with rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.norm = RMSNorm(shape.width)
        self.qkv = Matrix(shape.width, 3 * shape.width)
        self.out = Matrix(shape.width, shape.width)

    def forward(
        self, x_BTD: Float[Tensor, "B T D"], cosine_TC: Tensor, sine_TC: Tensor
    ) -> Float[Tensor, "B T D"]:
        """Output of the sublayer, to be written to the stream."""
        B, T, D = x_BTD.shape
        qkv = self.qkv(self.norm(x_BTD)).view(B, T, 3, self.num_heads, D // self.num_heads)
        q_BHTC, k_BHTC, v_BHTC = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            rotate(q_BHTC, cosine_TC[:T], sine_TC[:T]),
            rotate(k_BHTC, cosine_TC[:T], sine_TC[:T]),
            v_BHTC,
            is_causal=True,
        )
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(B, T, D))
        return y


class MLP(nn.Module):
    """Pre-norm SwiGLU: ``W_out (silu(W_gate x) * W_up x)`` (Shazeer, arXiv 2002.05202)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = RMSNorm(shape.width)
        self.gate_up = Matrix(shape.width, 2 * shape.mlp_width)
        self.out = Matrix(shape.mlp_width, shape.width)

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        cosine_TC: Tensor,  # noqa: ARG002
        sine_TC: Tensor,  # noqa: ARG002
    ) -> Float[Tensor, "B T D"]:
        """Output of the sublayer, to be written to the stream; positions play no part."""
        gate_BTM, up_BTM = self.gate_up(self.norm(x_BTD)).chunk(2, dim=-1)
        y: Tensor = self.out(F.silu(gate_BTM) * up_BTM)
        return y
