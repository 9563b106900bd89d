"""Cells in processes of their own, forked from a warm server, and what an undisturbed one leaves behind."""

import hashlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from experiments.checkpoint import load_latest
from experiments.history import read_rows
from experiments.record import RunStatus, read_record
from experiments.run_folder import is_running
from experiments.settings import Settings
from experiments.spec import RunSpec
from sweeps.launch.local import PRELOADED

END_SECONDS = 30.0
"""A cell that was asked to stop must be gone by then."""
FAR_SECONDS = 120.0

SERVER: Any = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(PRELOADED)

Sabotage = Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """Everything that must not depend on what happened on the way."""

    status: RunStatus
    losses: tuple[float | None, ...]
    rows: list[dict[str, Any]]
    dynamics: str
    weights: str


class Started:
    """``python -m experiments run`` at work in a forked process."""

    def __init__(
        self, spec: RunSpec, settings: Settings, folder: Path, sabotage: Sabotage | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.output = folder / "output.txt"
        self.run_dir = settings.runs / spec.spec_id
        spec_path, settings_path = folder / "spec.json", folder / "settings.json"
        spec_path.write_text(spec.model_dump_json())
        settings_path.write_text(settings.model_dump_json())
        arguments = ["run", str(spec_path), "--settings", str(settings_path)]
        self.process: BaseProcess = SERVER.Process(
            target=_command, args=(arguments, str(self.output), sabotage)
        )
        self.process.start()

    def send(self, number: int) -> bool:
        """Send a signal; whether the process was still there to get it."""
        if not self.process.is_alive():
            return False
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        return True

    def ended(self, seconds: float = FAR_SECONDS) -> int:
        """Its exit code; it must come in time, and the run be free afterwards."""
        self.process.join(seconds)
        hung = self.process.is_alive()
        if hung:
            self.process.kill()
        assert not hung, f"still running after {seconds:.0f} s: {self.said()}"
        assert not self.run_dir.exists() or not is_running(self.run_dir)
        assert self.process.exitcode is not None
        return self.process.exitcode

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


def _command(arguments: list[str], output: str, sabotage: Sabotage | None) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if sabotage is not None:
        sabotage()
    from experiments.__main__ import main

    sys.exit(main(arguments))


def run_cell(spec: RunSpec, settings: Settings, folder: Path, sabotage: Sabotage | None = None) -> int:
    """The command to its end -> its exit code."""
    return Started(spec, settings, folder, sabotage).ended()


def outcome(run_dir: Path) -> Outcome:
    """What ``run_dir`` holds; its last checkpoint's tensors, if one is kept, stand for the weights."""
    record = read_record(run_dir)
    assert record is not None
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)), "each step once"
    assert not list(run_dir.rglob("*.tmp")), "no leftovers"
    return Outcome(
        record.status,
        (record.val_loss, record.val_loss_se, record.train_loss, record.val_bits_per_byte),
        [{key: value for key, value in row.items() if key != "seconds"} for row in rows],
        hashlib.sha256((run_dir / "dynamics.parquet").read_bytes()).hexdigest(),
        _weights(run_dir),
    )


def _weights(run_dir: Path) -> str:
    checkpoint = load_latest(run_dir / "checkpoints")
    if checkpoint is None:
        return "none kept"
    assert checkpoint.damaged == []
    return (
        f"step {checkpoint.step}: {_hash(checkpoint.state['model'])} {_hash(checkpoint.state['optimizer'])}"
    )


def _hash(state: Any) -> str:
    digest = hashlib.sha256()

    def take(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(value.numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                digest.update(str(key).encode())
                take(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                take(item)
        else:
            digest.update(repr(value).encode())

    take(state)
    return digest.hexdigest()[:16]
