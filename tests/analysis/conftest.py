"""Fixtures of the analysis tests. `tests.analysis.planted` makes studies with a known answer."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
