"""What this project measured: the headlines of its committed studies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.compute_axes import EXACT, WALL
from analysis.headline import headline_of
from analysis.plan_file import PLAN_FILE
from analysis.study import MULTIPLIERS_FILE, Study

MADE_LOCALLY = ("demo", "smoke")
"""Studies that whoever runs them makes; they are not committed and have no place in a committed page."""


def study_rows(results: Path) -> Iterator[dict[str, Any]]:
    """Headline of every arm of every committed study under ``results``, in FLOPs and in wall-clock time."""
    for folder in sorted(results.iterdir()) if results.is_dir() else ():
        files = (folder / PLAN_FILE, folder / MULTIPLIERS_FILE)
        if folder.name in MADE_LOCALLY or not all(path.exists() for path in files):
            continue
        study = Study(folder)
        for arm in study.plan.arms:
            if arm == study.plan.baseline:
                continue
            for axis in (EXACT, WALL):
                m = headline_of(study, arm, axis)
                yield {
                    "study": folder.name,
                    "description": study.plan.description,
                    "variant": arm,
                    "compute_axis": axis,
                    "compute_multiplier": m.value,
                    "lo": m.lo,
                    "hi": m.hi,
                    "n_pairs": m.n_pairs,
                    "verdict": m.verdict,
                    "status": m.status,
                }
