"""Small disks of a test's own: mounted, filled, made read-only, unmounted."""

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHUNK = 4096


def mount(*arguments: str) -> None:
    """Call mount(8)."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True, timeout=30)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A tmpfs of that size at ``folder``; the test is skipped where nothing may be mounted."""
    folder.mkdir(parents=True)
    try:
        mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no tmpfs can be mounted here ({getattr(error, 'stderr', '') or error})")
    try:
        yield folder
    finally:
        unmount(folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A mounted ``folder`` that nobody may write, root neither."""
    mount("-o", "remount,ro", str(folder))
    try:
        yield
    finally:
        mount("-o", "remount,rw", str(folder))


def bind_read_only(folder: Path) -> None:
    """Make one folder of a disk read-only while files elsewhere on it are open for writing."""
    mount("--bind", str(folder), str(folder))
    mount("-o", "remount,bind,ro", str(folder))


def unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True, capture_output=True, timeout=30)


def fill(disk: Path, spare: int = 0) -> Path:
    """Write a file that leaves ``spare`` bytes free; returns it."""
    ballast = disk / "ballast"
    with open(ballast, "ab", buffering=0) as handle:
        try:
            while True:
                handle.write(bytes(CHUNK))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        handle.truncate(max(0, handle.tell() - spare))
    return ballast
