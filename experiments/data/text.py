"""Documents -> tokens: bytes, or a byte-level BPE trained on the training split; split by content."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attnres.errors import UserError
from experiments.data.overlap import without_overlap
from experiments.data.store import SPLITS, Split, TokenChunks

BYTES_VOCABULARY = 256
TRAINING_BYTES = 2 * 10**8
"""Text a BPE is trained on, at most: bounds the time and memory of its training."""
END = "<|end|>"
"""Ends every document; in the vocabulary of bytes it is byte 0, which texts do not hold."""


def split_of(document: bytes, validation_share: float) -> Split:
    """Split of a document, decided by its content alone, before any order is chosen (case S12).

    In expectation ``validation_share`` of the documents go to validation.
    """
    draw = int.from_bytes(hashlib.sha256(document).digest()[:8]) / 2**64
    return "val" if draw < validation_share else "train"


def by_content(documents: Iterable[bytes]) -> list[bytes]:
    """``documents`` without exact repeats, in an order that depends on their contents alone (case S14)."""
    unique = {hashlib.sha256(document).digest(): document for document in documents}
    return [unique[key] for key in sorted(unique)]


def split_by_content(documents: Iterable[bytes], validation_share: float) -> list[tuple[Split, bytes]]:
    """Unique ``documents`` with their splits; held-out text that training holds as well is left out."""
    texts = by_content(documents)
    parts: dict[Split, list[bytes]] = {"train": [], "val": []}
    for text in texts:
        parts[split_of(text, validation_share)].append(text)
    parts["val"] = without_overlap(parts["val"], parts["train"])
    return [(split, text) for split in SPLITS for text in parts[split]]


def check_vocabulary(vocab_size: int, dataset: str) -> None:
    """Refuse (``UserError``) sizes that are neither bytes nor a BPE over bytes."""
    if vocab_size < BYTES_VOCABULARY:
        raise UserError(f"vocab_size {vocab_size}: data set {dataset} is text; use 256 (bytes) or more (BPE)")


class Documents(Protocol):
    """Documents with their splits; can be gone through more than once."""

    def __iter__(self) -> Iterator[tuple[Split, bytes]]: ...


def tokenise(documents: Documents, vocab_size: int) -> tuple[TokenChunks, dict[str, Any]]:
    """``documents`` as tokens below ``vocab_size``, each followed by the end token.

    A BPE is trained on the first `TRAINING_BYTES` of the training split. The end token counts as one
    byte of text, in every vocabulary, so that bits per byte compare.
    """
    if vocab_size == BYTES_VOCABULARY:
        return _bytes_chunks(documents), {"tokeniser": "bytes"}
    model = train_bpe(_first_bytes(documents), vocab_size)
    about = {"tokeniser": "bpe", "tokeniser_sha256": hashlib.sha256(model.encode()).hexdigest()}
    return _bpe_chunks(documents, model), about


def train_bpe(texts: Iterable[bytes], vocab_size: int) -> str:
    """A byte-level BPE of ``vocab_size`` tokens (256 bytes, `END`, merges) trained on ``texts``, as JSON.

    Deterministic: the same texts in the same order give the same merges.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text.decode() for text in texts), trainer)
    return json.dumps(json.loads(tokenizer.to_str()), sort_keys=True)


def _bytes_chunks(documents: Iterable[tuple[Split, bytes]]) -> Iterator[tuple[Split, NDArray[np.uint8], int]]:
    for split, text in documents:
        tokens = np.frombuffer(text.replace(b"\0", b"") + b"\0", dtype=np.uint8)
        yield split, tokens, len(tokens)


def _bpe_chunks(
    documents: Iterable[tuple[Split, bytes]], model: str
) -> Iterator[tuple[Split, NDArray[np.int64], int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(model)
    end = tokenizer.token_to_id(END)
    left = iter(documents)
    while batch := list(islice(left, 256)):
        encoded = tokenizer.encode_batch([text.decode() for _, text in batch], add_special_tokens=False)
        for (split, text), encoding in zip(batch, encoded, strict=True):
            yield split, np.array([*encoding.ids, end], dtype=np.int64), len(text) + 1


def _first_bytes(documents: Documents) -> Iterator[bytes]:
    """Training texts, up to `TRAINING_BYTES`."""
    left = TRAINING_BYTES
    for split, text in documents:
        if left <= 0:
            return
        if split == "train":
            left -= len(text)
            yield text
