"""The decoder: embed, sublayers through a residual stream, norm, head. It has no branch on the stream."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnres.norm import RMSNorm
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from attnres.streams.base import Carrier, Stream
from attnres.sublayers import MLP, Attention, Matrix, Positions, WholeSequences, rotary_table


class Decoder(nn.Module):
    """Decoder-only Transformer over ``shape`` with the residual stream of ``stream_spec``.

    Parameters are uninitialised: `attnres.initialise.build` makes a model that is ready.

    Legend: B batch, T position, D width, V vocabulary.
    """

    cosine_TC: Tensor
    sine_TC: Tensor

    def __init__(self, shape: ModelShape, stream_spec: StreamSpec) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size, shape.width))
        self.sublayers = nn.ModuleList(
            sublayer for layer in range(shape.depth) for sublayer in (Attention(shape, layer), MLP(shape))
        )
        self.stream = stream_spec.build(shape)
        self.stand_in: Callable[[Stream], Carrier] | None = None
        """Puts something that watches in the stream's place (`attnres.probes`); None: nothing does."""
        self.norm = RMSNorm(shape.width)
        self.head = None if shape.tied else Matrix(shape.width, shape.vocab_size)
        size = (shape.seq_len, shape.head_width)
        self.register_buffer("cosine_TC", torch.empty(size), persistent=False)
        self.register_buffer("sine_TC", torch.empty(size), persistent=False)

    @torch.no_grad()
    def fill_rotary_tables(self) -> None:
        """Write the rotary angles; part of initialisation, since a meta-device build has no values."""
        cosine_TC, sine_TC = rotary_table(self.shape.seq_len, self.shape.head_width)
        self.cosine_TC.copy_(cosine_TC)
        self.sine_TC.copy_(sine_TC)

    def forward(self, tokens_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Logits of the next token at every position."""
        return self.logits(tokens_BT, self.positions(0, tokens_BT.shape[1]))

    def positions(self, start: int, count: int) -> WholeSequences:
        """Positions from ``start`` on that see each other alone.

        Raises:
            ValueError: beyond the model's ``seq_len``.
        """
        end = start + count
        if end > self.shape.seq_len:
            raise ValueError(f"{end} positions: the model has {self.shape.seq_len} (seq_len)")
        return WholeSequences(self.cosine_TC[start:end], self.sine_TC[start:end])

    def logits(self, tokens_BT: Int[Tensor, "B T"], positions: Positions) -> Float[Tensor, "B T V"]:
        """Logits of the next token at every given position."""
        stream = self.stream if self.stand_in is None else self.stand_in(self.stream)
        state = stream.start(F.embedding(tokens_BT, self.embedding))
        for site, sublayer in enumerate(self.sublayers):
            assert isinstance(sublayer, Attention | MLP)
            x_BTD = stream.read_normalised(state, site, sublayer.norm)
            state = stream.write(state, site, sublayer(x_BTD, positions))
        h_BTD = stream.read_normalised(state, self.shape.num_sublayers, self.norm)
        return F.linear(h_BTD, self.embedding if self.head is None else self.head.weight)

    def loss(self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats a token, in fp32 at least."""
        return F.cross_entropy(_wide(self(tokens_BT)).flatten(0, 1), targets_BT.flatten())

    def token_losses(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T"]:
        """Cross-entropy of every token in nats, in fp32 at least."""
        losses = F.cross_entropy(_wide(self(tokens_BT)).flatten(0, 1), targets_BT.flatten(), reduction="none")
        return losses.view_as(targets_BT)


def _wide(logits: Tensor) -> Tensor:
    """``logits`` in fp32, or as they are if wider."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
