from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sweep_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files, made once a session."""
    return tmp_path_factory.mktemp("sweep_data")


GRID_FILE = """
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Grid, Rung, pairs

ARMS = (ADDITIVE, StreamSpec(name="full_attnres"))


@GRIDS.register("{name}")
def make() -> Grid:
    cells = []
    for width in {widths}:
        shape = ModelShape(depth=2, width=width, num_heads=2, mlp_width=16, vocab_size=64, seq_len=32)
        cells += pairs(Rung(shape, {tokens_per_param}), arms=ARMS, dataset="synthetic", recipe="smoke")
    return Grid("{name}", "two tiny sizes", ARMS, tuple(cells))
"""


@pytest.fixture
def grid_file(tmp_path: Path):
    """Write a grid of two arms; returns its path."""

    def write(name: str, widths: tuple[int, ...] = (8, 12), tokens_per_param: float = 8) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(GRID_FILE.format(name=name, widths=widths, tokens_per_param=tokens_per_param))
        return path

    return write


TRUNKS_FILE = """
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Grid
from sweeps.trunks import BranchedRung, branched_pairs

ARMS = (ADDITIVE, StreamSpec(name="full_attnres"))


@GRIDS.register("{name}")
def make() -> Grid:
    cells = []
    for width in {widths}:
        shape = ModelShape(depth=2, width=width, num_heads=2, mlp_width=16, vocab_size=64, seq_len=32)
        rung = BranchedRung(shape, {tokens_per_param})
        cells += branched_pairs(rung, arms=ARMS, dataset="synthetic", recipe="smoke_trunks")
    return Grid("{name}", "two tiny sizes, branched", ARMS, tuple(cells))
"""


@pytest.fixture
def trunks_file(tmp_path: Path):
    """Write a grid of two arms whose budgets share trunks; returns its path."""

    def write(
        name: str, widths: tuple[int, ...] = (8,), tokens_per_param: tuple[float, ...] = (5, 20)
    ) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(TRUNKS_FILE.format(name=name, widths=widths, tokens_per_param=tokens_per_param))
        return path

    return write
