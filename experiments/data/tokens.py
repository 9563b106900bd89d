"""Tokens on disk and the batches cut from them: any step's batch is computed from its number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnres.errors import UserError
from experiments.data.order import permutation


class TokenStream:
    """Memory-mapped shards read as one sequence of tokens; where the shards are cut does not show.

    Args:
        shards: uint16 arrays, in order.
    """

    def __init__(self, shards: Sequence[NDArray[np.uint16]]) -> None:
        self._shards = shards
        self._starts = np.concatenate([[0], np.cumsum([len(shard) for shard in shards])]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> NDArray[np.uint16]:
        """Tokens ``start`` .. ``stop - 1``; a view where they lie in one shard."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts = []
        for number in range(first, len(self._shards)):
            offset = int(self._starts[number])
            if offset >= stop:
                break
            parts.append(self._shards[number][max(start - offset, 0) : stop - offset])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Windows of ``length`` tokens at ``starts`` -> int64 (len(starts), length)."""
        windows = np.empty((len(starts), length), dtype=np.int64)
        for row, start in enumerate(starts):
            windows[row] = self.read(int(start), int(start) + length)
        return windows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.read(0, len(self)), dtype=dtype)


@dataclass(frozen=True)
class TokenData:
    """The tokens of a data set for one vocabulary, split into training and validation by content.

    Windows hold ``seq_len + 1`` tokens (inputs and targets overlap by one) and lie ``seq_len`` apart.
    The training order is endless: pass p over all windows is a permutation that depends on
    (data_seed, p, seq_len) alone, and sequence g of the order is entry g modulo the number of windows
    of its pass. So batches depend on the step, not on when a process started (cases L02, L03).
    """

    name: str
    vocab_size: int
    train: TokenStream
    val: TokenStream
    train_bytes_per_token: float
    val_bytes_per_token: float
    manifest: dict[str, Any]

    def num_windows(self, seq_len: int) -> int:
        """Training windows of one pass.

        Raises:
            UserError: the training split is shorter than one window.
        """
        return self._count(self.train, "training", seq_len)

    def check_windows(self, seq_len: int) -> None:
        """Refuse (``UserError``) a ``seq_len`` for which a split is too short."""
        self._count(self.train, "training", seq_len)
        self._count(self.val, "validation", seq_len)

    def batch(
        self, step: int, *, batch_sequences: int, seq_len: int, data_seed: int, rank: int = 0, world: int = 1
    ) -> NDArray[np.int64]:
        """Batch of ``step`` (from 0) -> int64 (batch_sequences / world, seq_len + 1).

        The slices of ranks 0 .. world-1, one after the other, are the batch of one process.

        Raises:
            UserError: ``batch_sequences`` cannot be shared out evenly, or the split is too short.
        """
        if batch_sequences % world:
            raise UserError(
                f"batch of {batch_sequences} sequences cannot be shared by {world} processes; "
                f"choose batch_tokens divisible by seq_len x processes ({seq_len} x {world})"
            )
        share = batch_sequences // world
        count = self.num_windows(seq_len)
        sequences = step * batch_sequences + rank * share + np.arange(share, dtype=np.int64)
        passes, places = np.divmod(sequences, count)
        windows = np.empty(share, dtype=np.int64)
        for number in np.unique(passes):
            chosen = passes == number
            windows[chosen] = permutation(count, data_seed, int(number), seq_len)[places[chosen]]
        return self.train.windows(windows * seq_len, seq_len + 1)

    def validation(self, seq_len: int, max_tokens: int) -> NDArray[np.int64]:
        """The fixed validation windows -> int64 (windows, seq_len + 1), the same for every run.

        At most ``max_tokens`` target tokens, spread evenly over the split so that every document counts.

        Raises:
            UserError: the split, or ``max_tokens``, is shorter than one window.
        """
        available = self._count(self.val, "validation", seq_len)
        count = min(available, max_tokens // seq_len)
        if count < 1:
            raise UserError(f"validation tokens {max_tokens}: less than one window of {seq_len}; raise it")
        chosen = np.arange(count, dtype=np.int64) * available // count
        return self.val.windows(chosen * seq_len, seq_len + 1)

    def passes(self, tokens: int) -> float:
        """Passes over the training split that ``tokens`` training tokens make (case S13)."""
        return tokens / len(self.train)

    def bits_per_byte(self, loss: float) -> float:
        """Validation ``loss`` in nats a token as bits a byte of text: comparable between tokenisers."""
        return loss / math.log(2) / self.val_bytes_per_token

    def _count(self, split: TokenStream, name: str, seq_len: int) -> int:
        count = (len(split) - 1) // seq_len
        if count < 1:
            raise UserError(
                f"data set {self.name}: its {name} split of {len(split)} tokens is shorter than one "
                f"window of {seq_len + 1}; choose a smaller seq_len or another data set"
            )
        return count
