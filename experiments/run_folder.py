"""A run's folder: the files in it and its lock."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from attnres.errors import UserError
from attnres.files import write_text
from attnres.json_files import read_text, reason
from experiments.settings import Settings
from experiments.spec import RunSpec

SPEC_FILE = "spec.json"
SETTINGS_FILE = "settings.json"
LOCK_FILE = "lock"
LOG_FILE = "log.txt"

LOCK_SECONDS = 2.0
"""A start waits this long for the lock: whoever only looks (`is_running`) holds it for microseconds."""


def prepare_folder(spec: RunSpec, settings: Settings) -> Path:
    """The run's folder with its spec in it.

    Raises:
        UserError: it cannot be written, or holds another spec.
    """
    run_dir = settings.runs / spec.spec_id
    text = json.dumps(spec.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
    spec_path = run_dir / SPEC_FILE
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if not spec_path.exists():
            write_text(spec_path, text)
    except OSError as error:
        raise UserError(
            f"{run_dir}: cannot be written ({reason(error)}); make room, or it writable, or choose "
            "another --runs"
        ) from error
    if read_text(spec_path, f"move {run_dir} away") != text:
        raise UserError(
            f"{spec_path}: is not the spec of run {spec.spec_id} (damaged, or another's); "
            f"move {run_dir} away, or delete the file if the rest of the folder is that run's"
        )
    return run_dir


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run's lock: one process works on a folder. It is freed however that process dies.

    Raises:
        UserError: another process holds it, or it cannot be made.
    """
    path = run_dir / LOCK_FILE
    lock = FileLock(path)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise UserError(f"{run_dir}: already running in another process; wait for it or stop it") from None
    except OSError as error:
        raise _no_lock(path, reason(error)) from error
    try:
        yield
    finally:
        lock.release()


def is_running(run_dir: Path) -> bool:
    """Whether a process holds the run's lock.

    Looks with a shared lock, so that any number may look at once; a start that meets one waits.

    Raises:
        UserError: the lock is not a file.
    """
    path = run_dir / LOCK_FILE
    if path.is_dir():
        raise _no_lock(path, "it is a folder")
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _no_lock(path, reason(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _no_lock(path: Path, what: str) -> UserError:
    return UserError(f"{path}: cannot be locked ({what}); move it away, a start makes it anew")
