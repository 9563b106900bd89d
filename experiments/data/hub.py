"""Text streamed once from a Hugging Face data set into files, from where it was left off.

Documents lie in ``documents-<first>-<end>.txt``, in the order of the stream, each followed by byte 0;
the names say which documents are there, so that nothing else needs to be kept in step.
"""

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnres.errors import UserError, one_line
from attnres.files import atomic_path, remove_leftovers

FILE_BYTES = 2**26
COMPLETE_FILE = "complete"

_NAME = re.compile(r"documents-(\d+)-(\d+)\.txt")


@dataclass(frozen=True)
class HubText:
    """A pinned text column of a data set that `datasets.load_dataset` can stream."""

    path: str
    config: str | None
    revision: str | None
    column: str = "text"
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of load_dataset, such as data_files."""

    def open(self, skip: int) -> Iterator[str]:
        """Documents from number ``skip`` on.

        Raises:
            UserError: the `datasets` library is not installed.
        """
        try:
            datasets = importlib.import_module("datasets")
        except ImportError as error:
            raise UserError(
                f"data set {self.path}: needs the library datasets; run pip install -e '.[fineweb]'"
            ) from error
        stream = datasets.load_dataset(
            self.path, self.config, revision=self.revision, split="train", streaming=True, **self.options
        )
        for row in stream.select_columns([self.column]).skip(skip):
            yield row[self.column]


def fetch_text(source: HubText, folder: Path, *, text_bytes: int, dataset: str) -> None:
    """Stream ``source`` into ``folder`` until ``text_bytes`` are there or it ends.

    A later call goes on behind the last whole file; a complete folder needs no network.

    Raises:
        UserError: the stream broke off; the message says what to do.
    """
    if (folder / COMPLETE_FILE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    files = _files(folder)
    done = sum(path.stat().st_size for _, _, path in files)
    count = files[-1][1] if files else 0
    try:
        for first, documents in _batches(source.open(count), count, text_bytes - done):
            with atomic_path(
                folder / f"documents-{first:012d}-{first + len(documents):012d}.txt"
            ) as temporary:
                temporary.write_bytes(b"".join(text + b"\0" for text in documents))
            count = first + len(documents)
    except (UserError, OSError):
        raise
    except Exception as error:  # a hub's client raises the errors of whichever HTTP library it uses
        raise UserError(
            f"data set {dataset}: {source.path} broke off after {count} documents ({one_line(error)}); check "
            "the network and start again: it goes on from there"
        ) from error
    with atomic_path(folder / COMPLETE_FILE) as temporary:
        temporary.write_text(f"{count} documents\n")


def read_text(folder: Path) -> Iterator[bytes]:
    """The documents in ``folder``, in order."""
    for _, _, path in _files(folder):
        yield from path.read_bytes().split(b"\0")[:-1]


def _files(folder: Path) -> list[tuple[int, int, Path]]:
    """(first document, end, path), by document; files that do not follow on are not counted."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("documents-*.txt"))
    found = sorted((int(match[1]), int(match[2]), path) for match, path in matches if match)
    chained, end = [], 0
    for first, last, path in found:
        if first == end:
            chained.append((first, last, path))
            end = last
    return chained


def _batches(documents: Iterator[str], first: int, wanted: int) -> Iterator[tuple[int, list[bytes]]]:
    """(number of its first document, documents) of one file each, until ``wanted`` bytes are reached."""
    batch: list[bytes] = []
    size = 0
    while wanted > 0 and (document := next(documents, None)) is not None:
        text = document.replace("\0", "").encode()
        batch.append(text)
        size += len(text) + 1
        if size >= min(FILE_BYTES, wanted):
            yield first, batch
            first, wanted = first + len(batch), wanted - size
            batch, size = [], 0
    if batch:
        yield first, batch
