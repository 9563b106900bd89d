"""Sources of a forward pass without gradients, side by side in one piece of memory.

Decoding a token touches few numbers, so what counts is how little is done around them: no tensor is made
for a source, and a kernel call takes places computed from one address. Only the C kernels work here.

The memory is a tensor (B, T, slots x (D + R)) whose shape tells its sizes and whose elements are laid out as
values (slot, X, D), then logits (slot, R, X). It belongs to one forward pass and is written in place.

Legend: B batch, T position, D width, R reads, X tokens (B T).
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from attnres.constants import NORM_EPSILON
from attnres.kernels import native


class Layout(NamedTuple):
    """Sizes of a workspace."""

    slots: int
    width: int
    reads: int

    def allocate(self, x_BTD: Tensor, queries_RD: Tensor) -> Tensor | None:
        """Memory for the sources of ``x_BTD``'s pass; None where the kernels cannot serve it."""
        small = self.width <= native.MAX_WIDTH and self.slots <= native.MAX_SOURCES
        if not small or native.serving([x_BTD], [queries_RD]) is None:
            return None
        return queries_RD.new_empty(*x_BTD.shape[:-1], self.slots * (self.width + self.reads))

    def absorb(
        self,
        memory: Tensor,
        queries_RD: Tensor,
        y_BTD: Tensor,
        slot: int,
        first: int,
        count: int,
        *,
        add: bool,
    ) -> None:
        """Put ``y_BTD`` in ``slot``, or ``add`` it to what is there; its logits for ``count`` reads."""
        library = native.serving([y_BTD], [memory, queries_RD])
        assert library is not None, "allocate() found the kernels able to serve this pass"
        y_BTD = y_BTD.contiguous()
        size, base = memory.element_size(), memory.data_ptr()
        tokens = y_BTD.numel() // self.width
        value = base + slot * tokens * self.width * size
        scale = torch.empty(tokens, dtype=memory.dtype)
        library.run(
            "absorb",
            tokens,
            tokens,
            self.width,
            count,
            NORM_EPSILON,
            value if add else None,
            0,
            y_BTD.data_ptr(),
            native.code(y_BTD),
            queries_RD.data_ptr() + first * self.width * size,
            value,
            scale.data_ptr(),
            base + (self.slots * self.width + slot * self.reads + first) * tokens * size,
        )

    def mix_and_norm(
        self, memory: Tensor, count: int, read: int, gain_D: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """RMSNorm of read number ``read`` over the first ``count`` slots, as ``dtype`` (real or bf16)."""
        library = native.serving([memory], [gain_D])
        assert library is not None, "the workspace and the model are of one type"
        size, base = memory.element_size(), memory.data_ptr()
        shape = memory.shape
        tokens = shape[0] * shape[1]
        row = tokens * size
        values, logits = row * self.width, base + (self.slots * self.width + read) * row
        pointers = ctypes.c_void_p * count
        statistics = torch.empty(2, tokens, dtype=memory.dtype)
        y = torch.empty(shape[0], shape[1], self.width, dtype=dtype)
        library.run(
            "mix",
            tokens,
            self.width,
            count,
            NORM_EPSILON,
            pointers(*range(base, base + count * values, values)),
            _native_codes(count),
            pointers(*range(logits, logits + count * self.reads * row, self.reads * row)),
            gain_D.data_ptr(),
            None,
            statistics.data_ptr(),
            y.data_ptr(),
            native.code(y),
            statistics.data_ptr() + row,
        )
        return y

    def views(self, memory: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
        """Value (B, T, D) and logits (R, X) of the first ``count`` slots."""
        B, T, _ = memory.shape
        flat, cut = memory.view(-1), self.slots * B * T * self.width
        values = flat[:cut].view(self.slots, B, T, self.width)
        logits = flat[cut:].view(self.slots, self.reads, B * T)
        return [(values[slot], logits[slot]) for slot in range(count)]


def _native_codes(count: int) -> ctypes.Array[ctypes.c_int]:
    """``count`` zeros: every source has the real type."""
    return _ZEROS if count <= len(_ZEROS) else (ctypes.c_int * count)()


_ZEROS = (ctypes.c_int * 256)()
