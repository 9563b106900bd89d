from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing_programs


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = missing_programs()
    assert not missing, f"{', '.join(missing)}: not installed; `make test-slurm` installs Slurm"
    folder: Path = tmp_path_factory.mktemp("slurm")
    with Cluster(folder) as running:
        yield running
