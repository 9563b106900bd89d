"""One cell in a process of its own: output to the run's log, ended with the sweep that started it."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil

from experiments.__main__ import main
from experiments.run_folder import LOG_FILE, SETTINGS_FILE, SPEC_FILE
from experiments.signals import exit_with

WATCH_SECONDS = 1.0


def execute(run_dir: str, sweep_pid: int) -> None:
    """Run the cell in ``run_dir`` (spec.json, settings.json) and exit with its code.

    If the sweep's process ``sweep_pid`` dies, however it dies, the cell gets SIGTERM: it checkpoints and
    ends, so that the next sweep finds nothing running.
    """
    threading.Thread(target=_end_with, args=(sweep_pid,), daemon=True).start()
    exit_with(run_in_log(Path(run_dir)))


def run_in_log(run_dir: Path) -> int:
    """Run the cell in ``run_dir`` -> its exit code; what this process prints goes to its log from now on."""
    log = os.open(run_dir / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return main(["run", str(run_dir / SPEC_FILE), "--settings", str(run_dir / SETTINGS_FILE)])


def said_in_log(run_dir: Path, start: int, kind: str) -> list[str]:
    """Lines of ``kind`` (``error``, ``warning``) that a cell wrote to its log from byte ``start`` on.

    Each once: with its time from the run and without it from the process.
    """
    with open(run_dir / LOG_FILE, "rb") as log:
        log.seek(start)
        text = log.read().decode(errors="replace")
    return list(dict.fromkeys(re.findall(rf"^(?:[0-9T:+-]+ )?{kind}: (.+)$", text, flags=re.MULTILINE)))


def _end_with(sweep_pid: int) -> None:
    """Watch the sweep itself: the cell's parent is a fork server that lives as long as any cell does."""
    while _alive(sweep_pid):
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
