"""The yardstick: the same shape written the plain way (nn.Linear, nn.RMSNorm, SDPA, chunked SwiGLU, fused
AdamW, one cross-entropy), as compact public trainers do; the additive baseline must be at least as fast."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.accounting import flops_per_token
from attnres.initialise import build
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from benchmarks.ceilings import matmul_flops
from benchmarks.step import BATCH, SEQ_LEN, SIZES, VOCABULARY, shape_of, training_step
from benchmarks.timing import interleave, number, ratio, row

TURNS = 9


class PlainBlock(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.num_heads
        self.norm_attention, self.norm_mlp = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.project = nn.Linear(shape.width, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.mlp_width, bias=False)
        self.down = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).split(D, dim=2)
        q, k, v = (part.view(B, T, self.heads, D // self.heads).transpose(1, 2) for part in (q, k, v))
        q, k = turn(q, cosine, sine), turn(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).contiguous().view(B, T, D))
        gate, up = self.gate_up(self.norm_mlp(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cosine + two * sine, two * cosine - one * sine], dim=-1).type_as(x)


class PlainModel(nn.Module):
    cosine: Tensor
    sine: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.depth))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        half = shape.head_width // 2
        angle = torch.outer(torch.arange(shape.seq_len), 10_000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def plain_step(model: PlainModel, precision: str) -> Callable[[], None]:
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    undecayed = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": undecayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def rows() -> list[dict[str, Any]]:
    found = []
    ceilings = {"fp32": matmul_flops(torch.float32), "bf16": matmul_flops(torch.bfloat16)}
    additive = StreamSpec(name="additive")
    for precision, ceiling in ceilings.items():
        for size in SIZES:
            shape = shape_of(size)
            steps = {
                "ours": training_step(build(shape, additive, seed=0), precision),
                "plain": plain_step(PlainModel(shape), precision),
            }
            times = interleave(steps, turns=TURNS)
            speed = ratio(times, "plain", "ours")
            found.append(
                row(f"baseline throughput / nanoGPT-style, {precision} {size}", speed, 1.0, at_least=True)
            )
            flops = flops_per_token(shape, additive).total * BATCH * SEQ_LEN
            share = flops / speed.baseline_seconds / ceiling
            found.append(number(f"baseline share of the product ceiling, {precision} {size}", share))
    return found
