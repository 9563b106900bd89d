import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from experiments.settings import Settings
from experiments.spec import RunSpec, TrainSpec

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def make_spec(**changes: Any) -> RunSpec:
    """A tiny cell: 24 steps of 512 tokens. ``changes`` go to the spec, its shape or its training."""
    shape = {"depth": 2, "width": 16, "num_heads": 2, "mlp_width": 24, "vocab_size": 64, "seq_len": 32}
    train = {
        "recipe": "test",
        "batch_tokens": 512,
        "lr": 1e-2,
        "warmup": 3,
        "schedule": "cosine",
        "cooldown": None,
        "lr_floor": 0.1,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "grad_clip": 1.0,
        "precision": "fp32",
    }
    fields: dict[str, Any] = {
        "stream": StreamSpec(name="additive"),
        "dataset": "synthetic",
        "seed": 0,
        "data_seed": 0,
        "budget": 1e9,
        "tokens": 24 * 512,
    }
    for key, value in changes.items():
        target = shape if key in shape else train if key in train else fields
        target[key] = value
    return RunSpec(shape=ModelShape(**shape), train=TrainSpec(**train), **fields)


@pytest.fixture(scope="session")
def spec_of() -> Callable[..., RunSpec]:
    return make_spec


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files, made once a session."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def settings(tmp_path: Path, data_root: Path) -> Settings:
    """Runs in a folder of the test's own; nothing mirrored to MLflow."""
    return Settings(runs=tmp_path / "runs", data=data_root, tracking=False)


FIRST_USE = """
import shutil, socket, sys, time
from pathlib import Path
seen = []
connect = socket.socket.connect
socket.socket.connect = lambda self, address: (seen.append(address), connect(self, address))[1]
socket.getaddrinfo = lambda *address, **_: (seen.append(address), [])[1]
from experiments.tracking import prepare_store, store_uri, sync
runs, run_dir, empty = map(Path, sys.argv[1:])
prepare_store(store_uri(runs), runs)
shutil.copy(runs / "mlflow.db", empty)
assert sync([run_dir], store_uri(runs)) == 1
from mlflow.telemetry import get_telemetry_client
from mlflow.telemetry.utils import is_telemetry_disabled
assert is_telemetry_disabled() and get_telemetry_client() is None
time.sleep(0.5)
assert not seen, seen
"""


@pytest.fixture(scope="session")
def first_use(tmp_path_factory, spec_of) -> tuple[Path, Path, subprocess.CompletedProcess[str]]:
    """A store created and used in a process that nothing marks as a test, with every connection noted.

    Returns its folder, a copy of it from when it was empty (creation takes seconds, a copy nothing),
    and what became of the process.
    """
    folder, work = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("work")
    empty = tmp_path_factory.mktemp("empty") / "mlflow.db"
    from tests.experiments.mirrored import finish_dir

    run_dir = finish_dir(spec_of(), folder)
    marks = ("CI", "PYTEST_CURRENT_TEST", "GITHUB_ACTIONS", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK")
    environment = {
        key: value for key, value in os.environ.items() if key not in (*marks, "MLFLOW_TRACKING_URI")
    }
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE, folder, run_dir, empty],
        capture_output=True, text=True, cwd=work, env=environment,
    )  # fmt: skip
    return work, empty, done


@pytest.fixture(scope="session")
def template(first_use) -> Path:
    """An empty store to copy."""
    return first_use[1]


@pytest.fixture
def runs(tmp_path, template, monkeypatch) -> Path:
    """A folder of runs with an empty store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(template, runs / "mlflow.db")
    with sqlite3.connect(runs / "mlflow.db") as database:
        database.execute("UPDATE experiments SET artifact_location = ?", [f"file://{runs}/mlflow_artefacts"])
    return runs
