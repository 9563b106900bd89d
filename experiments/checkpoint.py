"""Checkpoints that are whole or absent, and that tell when they are damaged.

A file is named ``step-<step>-<first 16 hex digits of the SHA-256 of its bytes>.ckpt``: which one is
newest and whether it is intact can be told without opening it, and no time stamp matters.
"""

import hashlib
import io
import logging
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnres.errors import UserError
from attnres.files import atomic_path, remove_leftovers

CHECKPOINTS = "checkpoints"
"""Folder of a run's own checkpoints."""
BRANCH_POINTS = "branch_points"
"""Folder of those that a trunk keeps for its branches: never cleared by the trunk itself."""

KEPT = 2
"""Checkpoints kept: the newest, and the one before it in case the newest is damaged."""

_NAME = re.compile(r"step-(\d+)-([0-9a-f]{16})\.ckpt")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The newest intact checkpoint.

    ``damaged`` lists newer files that were passed over.
    """

    step: int
    state: dict[str, Any]
    path: Path
    damaged: list[Path]


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """`keep_checkpoint`, then drop all but the `KEPT` newest.

    Raises:
        UserError: as `keep_checkpoint`; the checkpoints before it are untouched.
    """
    path = keep_checkpoint(folder, step, state)
    try:
        _drop_old(folder, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def keep_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``state`` as the checkpoint of ``step`` beside the others in ``folder``; clear leftovers.

    Args:
        folder: made if it is missing.
        step: optimiser steps done.
        state: tensors and plain types (dict, list, tuple, str, int, float, bool, None) only, so that
            ``torch.load(weights_only=True)`` reads it (case L21); RNG states as tensors.

    Raises:
        UserError: the file cannot be written (a full disk, a read-only folder); those before it are
            untouched.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getbuffer()
    path = folder / f"step-{step:08d}-{hashlib.sha256(data).hexdigest()[:16]}.ckpt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with atomic_path(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: checkpoint cannot be written ({error.strerror or error}); make room or the folder "
        "writable and start the run again: it continues from the checkpoint before"
    )


def load_checkpoint(path: Path) -> LoadedCheckpoint:
    """The checkpoint that another process has chosen.

    Raises:
        UserError: it is not here, or damaged.
    """
    match = _NAME.fullmatch(path.name)
    data = path.read_bytes() if match and path.is_file() else b""
    if match is None or not _intact(path, data):
        raise UserError(
            f"{path}: damaged, or not seen from {platform.node()}; all processes of a run need the same "
            "--runs, on a file system that their machines share"
        )
    return LoadedCheckpoint(int(match[1]), _read(data), path, [])


def load_latest(
    folder: Path,
    tell: Callable[[str], None] = logger.warning,
    *,
    beside: Path | None = None,
    last: int | None = None,
) -> LoadedCheckpoint | None:
    """The intact checkpoint with the highest step, on the CPU; None if there is none.

    Args:
        folder: of the checkpoints.
        tell: see below.
        beside: a second folder of the same run's checkpoints.
        last: step beyond which none counts.

    A file whose bytes do not have the hash in its name is damaged: passed over, and ``tell`` is called
    with a line that names it; with one more where none is intact.
    """
    damaged: list[Path] = []
    found = sorted(_checkpoints(folder) + (_checkpoints(beside) if beside else []))
    for step, path in reversed(found):
        if last is not None and step > last:
            continue
        data = path.read_bytes()
        if not _intact(path, data):
            tell(f"{path}: damaged checkpoint (its hash is not the one in its name), not used")
            damaged.append(path)
            continue
        return LoadedCheckpoint(step, _read(data), path, damaged)
    if damaged:
        tell(f"{folder}: no checkpoint is intact ({len(damaged)} damaged); the run starts again at step 1")
    return None


def intact_checkpoint(folder: Path, step: int) -> Path | None:
    """The file of ``step`` whose bytes have the hash in its name; None if there is none."""
    paths = [path for known, path in _checkpoints(folder) if known == step]
    return next((path for path in paths if _intact(path, path.read_bytes())), None)


def drop_checkpoints(folder: Path, after: int) -> None:
    """Delete the checkpoints of steps beyond ``after``: they belong to steps that are trained again."""
    for step, path in _checkpoints(folder):
        if step > after:
            path.unlink(missing_ok=True)


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) by step; two of one step (a resumed run may redo it) by name."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.ckpt"))
    return sorted((int(match[1]), path) for match, path in matches if match and path.is_file())


def _read(data: bytes) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def _intact(path: Path, data: bytes) -> bool:
    match = _NAME.fullmatch(path.name)
    return match is not None and hashlib.sha256(data).hexdigest()[:16] == match[2]


def _drop_old(folder: Path, newest: Path) -> None:
    """Delete all but `KEPT` checkpoints; ``newest``, just written, is among the kept whatever its step.

    The one kept beside it is the best other that is intact, so that a good one is never given up for
    a damaged one.
    """
    others = [path for _, path in reversed(_checkpoints(folder)) if path != newest]
    kept = [newest]
    for path in others:
        if len(kept) < KEPT and _intact(path, path.read_bytes()):
            kept.append(path)
        else:
            path.unlink(missing_ok=True)
