import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from attnres.stream_spec import StreamSpec  # noqa: E402
from experiments.settings import Settings  # noqa: E402
from experiments.spec import RunSpec  # noqa: E402
from tests.experiments.conftest import make_spec  # noqa: E402
from tests.faults.cells import Outcome, outcome, run_cell  # noqa: E402

STEPS = 16


def tiny_spec(seed: int = 0) -> RunSpec:
    """Sixteen steps, two validations: a second of work."""
    return make_spec(
        stream=StreamSpec(name="full_attnres"), seed=seed, tokens=STEPS * 4096, batch_tokens=4096,
        seq_len=64, width=8, mlp_width=16,
    )  # fmt: skip


def tiny_settings(runs: Path, data: Path) -> Settings:
    """A checkpoint every step."""
    return Settings(runs=runs, data=data, tracking=False, checkpoint_steps=1, probes=3, evaluations=2)


SEED = int(os.environ.get("FAULTS_SEED", time.time_ns() % 10**6))


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> random.Random:
    """Random moments; ``FAULTS_SEED=...`` repeats those of a session that failed."""
    print(f"FAULTS_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def fault_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fault_data")


@pytest.fixture
def settings(tmp_path: Path, fault_data: Path) -> Settings:
    return tiny_settings(tmp_path / "runs", fault_data)


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, fault_data: Path
) -> Callable[[int], tuple[Outcome, float]]:
    """By seed: the outcome of the tiny cell that nobody disturbed, and the seconds it took."""
    folder = tmp_path_factory.mktemp("undisturbed")
    settings = tiny_settings(folder / "runs", fault_data)
    run_cell(tiny_spec(seed=99), settings, folder / "first")  # data, fork server: not to be counted
    known: dict[int, tuple[Outcome, float]] = {}

    def of(seed: int = 0) -> tuple[Outcome, float]:
        if seed not in known:
            spec, started = tiny_spec(seed), time.monotonic()
            assert run_cell(spec, settings, folder / "cell") == 0
            known[seed] = outcome(settings.runs / spec.spec_id), time.monotonic() - started
        return known[seed]

    return of
