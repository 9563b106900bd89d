"""metrics.jsonl: one JSON object a line, one line a step, each step once, across restarts."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnres.errors import UserError
from attnres.files import write_text
from attnres.json_files import read_text

METRICS_FILE = "metrics.jsonl"

Row = dict[str, Any]


def finite(value: float) -> float | None:
    """``value``, or None if it is not finite: tables hold no NaN or infinity in disguise."""
    return value if math.isfinite(value) else None


class History:
    """The rows of a run, appended as they come.

    Args:
        run_dir: folder of the run.
        step: step of the checkpoint the run continues from; later rows belong to a trajectory that
            did not survive and are removed.

    Raises:
        UserError: a step at or before ``step`` is missing.
    """

    def __init__(self, run_dir: Path, step: int) -> None:
        self.path = run_dir / METRICS_FILE
        self.rows = [row for row in read_rows(self.path) if row["step"] <= step]
        if [row["step"] for row in self.rows] != list(range(1, step + 1)):
            raise UserError(
                f"{self.path}: steps before the checkpoint at step {step} are missing; "
                f"delete {run_dir} to train this run again"
            )
        write_rows(self.path, self.rows)
        self._handle = open(self.path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115  (close)

    def append(self, row: Row) -> None:
        """Add the row of the next step."""
        self.rows.append(row)
        self._handle.write(_line(row))

    def sync(self) -> None:
        """Make every row durable: before a checkpoint that relies on them."""
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def close(self) -> None:
        """Close the file."""
        self._handle.close()


def read_rows(path: Path) -> list[Row]:
    """Rows of a metrics file; a last line cut short by a kill is left out.

    Raises:
        UserError: it cannot be read, or a line is not a row.
    """
    if not path.exists():
        return []
    advice = f"restore it, or delete {path.parent} to train this run again"
    lines = read_text(path, advice).split("\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _parsed(line)
        if row is None:
            raise UserError(f"{path}: line {number} is damaged; {advice}")
        rows.append(row)
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a metrics file of ``rows``, whole or not at all."""
    write_text(path, "".join(_line(row) for row in rows))


def _parsed(line: str | bytes) -> Row | None:
    """The row that ``line`` holds, or None if it holds none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def last_row(run_dir: Path) -> Row | None:
    """Newest whole row of a run that may still be writing; reads the file's end only.

    None as well where that line is damaged: this is for showing progress, the run itself will refuse.
    """
    path = run_dir / METRICS_FILE
    if not path.is_file():
        return None
    with open(path, "rb") as handle:
        handle.seek(max(0, path.stat().st_size - 4096))
        lines = handle.read().split(b"\n")
    return _parsed(lines[-2]) if len(lines) > 1 else None
