"""Text that occurs twice: near copies of documents, and held-out text that training holds as well."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

SPAN = 64
"""Bytes in a row that count as the same text. In the addresses 1.2 % of the held-out text occurs in
training at this length (messages that quote earlier ones), 0.6 % at 256."""

SAMPLING = 64
"""One span in this many stands for a document when near copies are looked for."""

_FACTOR = 0x100000001B3


def without_overlap(held_out: Sequence[bytes], training: Iterable[bytes]) -> list[bytes]:
    """``held_out`` without the paragraphs that share `SPAN` consecutive bytes with ``training``.

    Training keeps its text; documents of which nothing is left are dropped.
    """
    hashes = [span_hashes(text) for text in held_out]
    wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]))
    shared = _occurring(wanted, training)
    kept = [
        _keep(text, shared[np.searchsorted(wanted, own)]) for text, own in zip(held_out, hashes, strict=True)
    ]
    return [text for text in kept if text]


def span_hashes(text: bytes) -> NDArray[np.uint64]:
    """A hash of ``text[i : i + SPAN]`` for every i; empty if the text is shorter.

    Polynomial hashes by doubling: ``h_2k[i] = h_k[i] * factor^k + h_k[i + k]``, modulo 2^64.
    """
    hashes = np.frombuffer(text, dtype=np.uint8).astype(np.uint64) + np.uint64(1)
    length = 1
    while length < SPAN:
        factor = np.uint64(pow(_FACTOR, length, 2**64))
        hashes = hashes[:-length] * factor + hashes[length:]
        length *= 2
    return hashes


def without_near_copies(documents: Iterable[bytes]) -> list[bytes]:
    """``documents`` without those of which more than half was seen in the ones before.

    A document is stood for by those of its spans whose hash is a multiple of `SAMPLING`: the choice
    depends on content alone, so that copies with lines added or taken away choose the same spans.
    """
    seen: set[int] = set()
    kept = []
    for text in documents:
        hashes = span_hashes(text)
        sample = set(hashes[hashes % np.uint64(SAMPLING) == 0].tolist())
        if 2 * len(sample & seen) > len(sample):
            continue
        seen |= sample
        kept.append(text)
    return kept


def _occurring(wanted: NDArray[np.uint64], training: Iterable[bytes]) -> NDArray[np.bool_]:
    """Which of the sorted ``wanted`` hashes occur in ``training``.

    A table over the hashes' low bits sorts out nearly all others before the far slower search.
    """
    found = np.zeros(len(wanted), dtype=bool)
    if not len(wanted):
        return found
    mask = np.uint64(2 ** (len(wanted).bit_length() + 4) - 1)
    table = np.zeros(int(mask) + 1, dtype=bool)
    table[wanted & mask] = True
    for text in training:
        hashes = span_hashes(text)
        hashes = hashes[table[hashes & mask]]
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        found[places[wanted[places] == hashes]] = True
    return found


def _keep(text: bytes, shared: NDArray[np.bool_]) -> bytes:
    """``text`` without the paragraphs that a shared span touches."""
    touched = np.zeros(len(text) + 1, dtype=np.int64)
    starts = np.flatnonzero(shared)
    np.add.at(touched, starts, 1)
    np.add.at(touched, starts + SPAN, -1)
    covered = np.cumsum(touched)[:-1] > 0
    kept, start = [], 0
    for paragraph in text.split(b"\n\n"):
        if not covered[start : start + len(paragraph)].any():
            kept.append(paragraph)
        start += len(paragraph) + 2
    return b"\n\n".join(kept).strip(b"\n")
