"""Generation: prefill a prompt, then decode token by token with cached keys and values, for every stream.

A residual stream acts on each position alone, so it needs no cache: its state lives for one forward pass
of the new positions. What is cached is the attention's keys and values.

Legend: B batch, T new positions, S cached positions, H heads, C channels of a head, V vocabulary.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnres.decoder import Decoder
from attnres.errors import UserError


class Generator:
    """A model and the keys and values of the positions it has seen, for ``batch`` sequences side by side.

    Args:
        model: its ``seq_len`` bounds prompt and generation together.
        batch: sequences.
    """

    def __init__(self, model: Decoder, batch: int = 1) -> None:
        shape = model.shape
        size = (shape.depth, batch, shape.num_heads, shape.seq_len, shape.head_width)
        like = model.embedding
        self.model = model
        self.length = 0
        """Positions seen."""
        self._keys = [torch.empty(size[1:], dtype=like.dtype, device=like.device) for _ in range(shape.depth)]
        self._values = [torch.empty_like(keys) for keys in self._keys]

    @torch.inference_mode()
    def extend(self, tokens_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """See ``tokens_BT`` (a prompt, a piece of one, or one token) and give the logits of what follows.

        Raises:
            UserError: no room for the tokens, or another number of sequences.
        """
        (sequences, count), limit = tokens_BT.shape, self.model.shape.seq_len
        if sequences != self._keys[0].shape[0]:
            raise UserError(
                f"got {sequences} sequences for a cache of {self._keys[0].shape[0]}: keep the batch"
            )
        if not 0 < count <= limit - self.length:
            raise UserError(
                f"{count} tokens after {self.length} do not fit seq_len {limit}: shorten the text"
            )
        logits_BTV = self.model.logits(tokens_BT, _CachedPositions(self, count))
        self.length += count
        return logits_BTV[:, -1]

    def append(self, layer: int, k_BHTC: Tensor, v_BHTC: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of new positions; all of that layer's, the new ones included."""
        end = self.length + k_BHTC.shape[2]
        self._keys[layer][:, :, self.length : end] = k_BHTC
        self._values[layer][:, :, self.length : end] = v_BHTC
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]


class _CachedPositions:
    """``count`` new positions after those that ``generator`` has seen."""

    def __init__(self, generator: Generator, count: int) -> None:
        model, start = generator.model, generator.length
        self.generator = generator
        self.cosine_TC = model.cosine_TC[start : start + count]
        self.sine_TC = model.sine_TC[start : start + count]

    def attend(self, layer: int, q_BHTC: Tensor, k_BHTC: Tensor, v_BHTC: Tensor) -> Tensor:
        """Every new position sees all cached ones and the new ones up to itself."""
        keys_BHSC, values_BHSC = self.generator.append(layer, k_BHTC, v_BHTC)
        new, seen = q_BHTC.shape[2], keys_BHSC.shape[2]
        if new == 1:
            return F.scaled_dot_product_attention(q_BHTC, keys_BHSC, values_BHSC)
        if new == seen:
            return F.scaled_dot_product_attention(q_BHTC, k_BHTC, v_BHTC, is_causal=True)
        mask_TS = torch.ones(new, seen, dtype=torch.bool, device=q_BHTC.device).tril(seen - new)
        return F.scaled_dot_product_attention(q_BHTC, keys_BHSC, values_BHSC, attn_mask=mask_TS)


def generate(
    model: Decoder,
    prompt_BT: Int[Tensor, "B T"],
    num_tokens: int,
    *,
    temperature: float = 1.0,
    random: torch.Generator | None = None,
) -> Int[Tensor, "B N"]:
    """``num_tokens`` tokens drawn after ``prompt_BT``; ``temperature`` 0 takes the likeliest."""
    generator = Generator(model, prompt_BT.shape[0])
    logits_BV, drawn = generator.extend(prompt_BT), []
    for index in range(num_tokens):
        if temperature == 0:
            token_B1 = logits_BV.argmax(-1, keepdim=True)
        else:
            token_B1 = torch.multinomial((logits_BV / temperature).softmax(-1), 1, generator=random)
        drawn.append(token_B1)
        if index + 1 < num_tokens:
            logits_BV = generator.extend(token_B1)
    return torch.cat(drawn, 1)
