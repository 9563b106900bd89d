"""One cell in a process of its own: output to the run's log, ended with the process that started it."""

import ctypes
import os
import signal
import sys
from pathlib import Path

from experiments.__main__ import main

_PR_SET_PDEATHSIG = 1


def execute(run_dir: str) -> None:
    """Run the cell in ``run_dir`` (spec.json, settings.json) and exit with its code.

    If the parent dies, however it dies, the cell gets SIGTERM: it checkpoints and ends, so that the
    next sweep finds nothing running.
    """
    folder = Path(run_dir)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _end_with_parent()
    sys.exit(main(["run", str(folder / "spec.json"), "--settings", str(folder / "settings.json")]))


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
