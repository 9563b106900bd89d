"""Files that are either whole or absent: temporary file in the same folder, fsync, rename."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success fsync it and rename it over ``path``.

    The temporary name starts with a dot and ends with ``.tmp``: leftovers of a killed process never
    look like results, and `remove_leftovers` clears them. An ``OSError`` names ``path``.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # a full disk names no file, others the temporary
        raise
    finally:
        with suppress(OSError):  # a read-only disk: what was raised before is what matters
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8, newlines kept) so that a reader sees the old file or the new one."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as sorted, indented JSON. NaN and infinity are refused (``ValueError``)."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that a killed process left in ``folder``."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def sync_directory(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
