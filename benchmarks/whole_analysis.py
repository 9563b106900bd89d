"""Time of the whole analysis, figures and report included, of a made-up table of 300 runs.

``rows()`` gives {name, value, lo, hi, bar, met}; a fresh process, as a user starts it.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.timing import number
from tests.analysis.planted import planted_study

BAR_SECONDS = 20.0


def rows() -> list[dict[str, Any]]:
    """One row: seconds of ``python -m analysis report``."""
    with tempfile.TemporaryDirectory() as folder:
        study = planted_study(Path(folder) / "study", sizes=10, seeds=10)
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "analysis", "report", "--study", str(study)],
            check=True,
            capture_output=True,
        )
        return [number("whole analysis of 300 runs, s", time.perf_counter() - begin, BAR_SECONDS)]


if __name__ == "__main__":
    print(rows())
