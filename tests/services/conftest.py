import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.services.servers import Postgres, missing, postgres  # noqa: E402


@pytest.fixture(scope="session")
def database_server() -> Iterator[Postgres]:
    absent = missing()
    assert not absent, f"{', '.join(absent)}: not installed; `make test-services` installs them"
    with postgres() as server:
        yield server
