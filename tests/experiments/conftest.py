from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from experiments.settings import Settings
from experiments.spec import RunSpec, TrainSpec


def make_spec(**changes: Any) -> RunSpec:
    """A tiny cell: 24 steps of 512 tokens. ``changes`` go to the spec, its shape or its training."""
    shape = {"depth": 2, "width": 16, "num_heads": 2, "mlp_width": 24, "vocab_size": 64, "seq_len": 32}
    train = {
        "recipe": "test",
        "batch_tokens": 512,
        "lr": 1e-2,
        "warmup": 3,
        "schedule": "cosine",
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
