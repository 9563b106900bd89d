"""Folders of token shards: written whole or not at all, described by a manifest of hashes.

A folder holds ``train-00000.bin``, ``train-00001.bin``, ..., ``val-00000.bin``, ... (little-endian
uint16) and ``manifest.json``, which is written last.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from attnres.errors import UserError
from attnres.files import sync_directory, write_json
from attnres.json_files import read_model
from experiments.data.tokens import TokenData, TokenStream

MANIFEST_FILE = "manifest.json"
SHARD_TOKENS = 2**26
"""Tokens of a full shard: 128 MiB."""

Split = Literal["train", "val"]
SPLITS: tuple[Split, Split] = ("train", "val")


class _Shard(BaseModel):
    file: str = Field(pattern=r"^[\w-]+\.bin$")
    tokens: int = Field(ge=1)
    sha256: str


class _SplitEntry(BaseModel):
    model_config = ConfigDict(extra="allow")

    tokens: int = Field(ge=0)
    bytes: int = Field(ge=0)
    shards: list[_Shard]

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(1, self.tokens)


class _Manifest(BaseModel):
    """manifest.json; data sets add what they like to it."""

    model_config = ConfigDict(extra="allow")

    name: str
    vocab_size: int
    splits: dict[Split, _SplitEntry] = Field(min_length=2)


class ShardWriter:
    """Appends tokens to the shards of one split.

    Args:
        folder: where the shards go.
        split: which split.
        vocab_size: every token must be smaller.
        shard_tokens: where shards are cut; no reader can tell.
    """

    def __init__(self, folder: Path, split: Split, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder, self.split, self.vocab_size, self.shard_tokens = folder, split, vocab_size, shard_tokens
        self.text_bytes = 0
        self._shards: list[dict[str, Any]] = []
        self._stream_hash = hashlib.sha256()
        self._open()

    def append(self, tokens: NDArray[np.integer[Any]], text_bytes: int) -> None:
        """Add ``tokens``, which stand for ``text_bytes`` bytes of text."""
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab_size:
            raise ValueError(f"token {int(tokens.max())} is outside the vocabulary of {self.vocab_size}")
        self.text_bytes += text_bytes
        left = tokens.astype("<u2")
        while len(left):
            part, left = np.split(left, [self.shard_tokens - self._tokens])
            data = part.tobytes()
            self._handle.write(data)
            self._hash.update(data)
            self._stream_hash.update(data)
            self._tokens += len(part)
            if self._tokens == self.shard_tokens:
                self._close()
                self._open()

    def finish(self) -> dict[str, Any]:
        """Close the last shard -> the split's entry in the manifest."""
        self._close()
        tokens = sum(shard["tokens"] for shard in self._shards)
        return {
            "tokens": tokens,
            "bytes": self.text_bytes,
            "stream_sha256": self._stream_hash.hexdigest(),
            "shards": self._shards,
        }

    def _open(self) -> None:
        self._path = self.folder / f"{self.split}-{len(self._shards):05d}.bin"
        self._handle = open(self._path, "wb")  # noqa: SIM115  (stays open until the shard is full)
        self._hash = hashlib.sha256()
        self._tokens = 0

    def _close(self) -> None:
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._handle.close()
        if not self._tokens:
            self._path.unlink()
            return
        entry = {"file": self._path.name, "tokens": self._tokens, "sha256": self._hash.hexdigest()}
        self._shards.append(entry)


TokenChunks = Iterable[tuple[Split, NDArray[np.integer[Any]], int]]
"""(split, tokens, bytes of text they stand for), in the order of the stream."""


def write_tokens(
    folder: Path,
    chunks: TokenChunks,
    *,
    about: dict[str, Any],
    vocab_size: int,
    shard_tokens: int = SHARD_TOKENS,
) -> None:
    """Write ``chunks`` to ``folder``, which appears whole or not at all.

    Args:
        folder: must not exist; a half-written one of an earlier attempt is cleared.
        chunks: the tokens.
        about: what goes into the manifest beside the hashes (name, version, tokeniser).
        vocab_size: bound of the tokens.
        shard_tokens: where shards are cut.
    """
    partial = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        writers = {split: ShardWriter(partial, split, vocab_size, shard_tokens) for split in SPLITS}
        for split, tokens, text_bytes in chunks:
            writers[split].append(tokens, text_bytes)
        splits = {split: writer.finish() for split, writer in writers.items()}
        write_json(partial / MANIFEST_FILE, {**about, "vocab_size": vocab_size, "splits": splits})
        os.replace(partial, folder)
        sync_directory(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def open_tokens(folder: Path) -> TokenData:
    """Memory-map the tokens in ``folder``; sizes are checked, contents are not (`verify_tokens`).

    Raises:
        UserError: a shard is missing or has another size than the manifest says.
    """
    manifest = _read_manifest(folder)
    streams = {}
    for split, entry in manifest.splits.items():
        shards = []
        for shard in entry.shards:
            path = folder / shard.file
            size = path.stat().st_size if path.is_file() else None
            if size != 2 * shard.tokens:
                raise damaged(path, "missing" if size is None else f"{size} bytes, not {2 * shard.tokens}")
            shards.append(np.memmap(path, dtype="<u2", mode="r"))
        streams[split] = TokenStream(shards)
    return TokenData(
        name=manifest.name,
        vocab_size=manifest.vocab_size,
        train=streams["train"],
        val=streams["val"],
        train_bytes_per_token=manifest.splits["train"].bytes_per_token,
        val_bytes_per_token=manifest.splits["val"].bytes_per_token,
        manifest=manifest.model_dump(),
    )


def verify_tokens(folder: Path) -> None:
    """Compare every shard in ``folder`` with its hash in the manifest.

    Raises:
        UserError: one differs; the message names it.
    """
    for entry in _read_manifest(folder).splits.values():
        for shard in entry.shards:
            path = folder / shard.file
            with open(path, "rb") as handle:
                if hashlib.file_digest(handle, "sha256").hexdigest() != shard.sha256:
                    raise damaged(path, "its hash is not the manifest's")


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST_FILE
    return read_model(path, _Manifest, f"delete the folder {folder} and it is made again")


def damaged(path: Path, what: str) -> UserError:
    """The refusal of a damaged file of a folder of tokens."""
    return UserError(f"{path}: damaged ({what}); delete the folder {path.parent} and it is made again")
