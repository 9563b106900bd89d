"""Facts of the machine and the code that go into a record."""

import resource
import subprocess
from pathlib import Path

import torch

from attnres.errors import UserError
from experiments.settings import Settings


def git_sha() -> str:
    """Commit of the project's code, ``+dirty`` if tracked files differ; ``unknown`` outside git."""
    here = Path(__file__).resolve().parent.parent
    sha = _git(here, "rev-parse", "--short=12", "HEAD")
    if sha is None:
        return "unknown"
    return sha + ("+dirty" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_device(settings: Settings, here: int = 1) -> torch.device:
    """The kind of device to train on.

    Args:
        settings: operational settings.
        here: processes of a cell on this machine, each with a device of its own.

    Raises:
        UserError: it is asked for by name and not here, or there are too few.
    """
    kind = "cuda" if settings.device != "cpu" and torch.cuda.is_available() else "cpu"
    if settings.device == "cuda" and kind != "cuda":
        raise UserError("device cuda: no CUDA device is visible here; use --device cpu")
    if kind == "cuda" and torch.cuda.device_count() < here:
        raise UserError(
            f"processes {here}: each needs a CUDA device of its own, {torch.cuda.device_count()} are visible "
            "here; ask for fewer, or use --device cpu"
        )
    return torch.device(kind)


def device_kind(device: torch.device) -> str:
    """``cpu`` or the name of the accelerator: runs of one pair must agree in it."""
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory held so far: of the accelerator's allocator, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
