"""runs/<spec_id>/metrics.jsonl -> curves.parquet: one row a step, each step once."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.schema import CURVE_COLUMNS
from attnres.errors import UserError
from attnres.files import atomic_path

METRICS_FILE = "metrics.jsonl"

_ARROW = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
_VALUES = tuple(c.name for c in CURVE_COLUMNS if c.name not in ("spec_id", "step"))


def write_curves(path: Path, runs_root: Path, spec_ids: Iterable[str]) -> None:
    """Write the curves of the runs that have any; the same bytes from the same files.

    Raises:
        UserError: a metrics file is broken; it and its line are named.
    """
    table: dict[str, list[Any]] = {column.name: [] for column in CURVE_COLUMNS}
    for spec_id in sorted(spec_ids):
        source = runs_root / spec_id / METRICS_FILE
        if not source.exists():
            continue
        for step, point in sorted(read_metrics(source).items()):
            table["spec_id"].append(spec_id)
            table["step"].append(step)
            for name in _VALUES:
                table[name].append(point.get(name))
    schema = pa.schema([(column.name, _ARROW[column.kind]) for column in CURVE_COLUMNS])
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(table, schema=schema), temporary)


def read_metrics(path: Path) -> dict[int, dict[str, Any]]:
    """Points by step. A step written again (after a restart) wins; values that are not finite are None.

    A last line that was cut off by a kill is left out: the run writes that step again when it goes on.

    Raises:
        UserError: any other line that is not a JSON object with a whole ``step``.
    """
    text = path.read_text(errors="replace")
    points: dict[int, dict[str, Any]] = {}
    for number, point in _parse(path, text):
        step = point.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise UserError(f"{path} line {number}: step is {step!r}, not a whole number")
        clean = {name: _finite(path, number, name, value) for name, value in point.items() if name in _VALUES}
        points.setdefault(step, {}).update({k: v for k, v in clean.items() if v is not None})
    return points


def _parse(path: Path, text: str) -> Iterable[tuple[int, dict[str, Any]]]:
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            point = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise UserError(f"{path} line {number}: not JSON ({error.msg})") from None
        if not isinstance(point, dict):
            raise UserError(f"{path} line {number}: not a JSON object")
        yield number, point


def _finite(path: Path, number: int, name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{path} line {number}: {name} is {value!r}, not a number")
    if not math.isfinite(value) or abs(value) >= LARGEST:
        return None
    return int(value) if name == "tokens" else float(value)


LARGEST = 1e300
"""Beyond: an infinity that a store wrote as the largest double (1.797e308)."""
