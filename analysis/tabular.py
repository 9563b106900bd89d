"""Tables as files: CSV held to a column contract, byte-stable, checked at the border.

A cell is empty for "no value"; floats are written with the fewest digits that read back the same
number; booleans are ``true`` and ``false``; a number that is not finite has no place in a table.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.schema import Column, Kind
from attnres.errors import UserError
from attnres.files import write_text

DTYPES: dict[Kind, str] = {"str": "object", "int": "Int64", "float": "float64", "bool": "boolean"}
"""pandas type of each kind of column; missing integers and booleans are ``pd.NA``, floats NaN."""

_BOOLEANS = {"true": True, "false": False}


def write_table(path: Path, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write ``rows`` as CSV, atomically, with exactly ``columns`` in their order."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    for row in rows:
        writer.writerow([format_value(row.get(column.name)) for column in columns])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, buffer.getvalue())


def format_value(value: Any) -> str:
    """``value`` as the text of a CSV cell; "" for None, NA, NaN and the infinities."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return repr(float(value)) if math.isfinite(value) else ""
    return str(value)


def read_table(path: Path, columns: Sequence[Column], *, required: bool = True) -> pd.DataFrame:
    """Read a CSV written to the contract ``columns``.

    Args:
        path: the file.
        columns: the contract; further columns in the file are kept as text.
        required: refuse empty cells in columns that are not nullable.

    Raises:
        UserError: no such file, a missing column, or a cell that is not what its column says; the
            message names file, row, column and value.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file")
    header, *lines = _read_lines(path)
    missing = [column.name for column in columns if column.name not in header]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(f"{path}: no column {', '.join(missing[:3])}{more}")
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise UserError(f"{path} line {number}: {len(line)} cells for {len(header)} columns")
    by_name = {name: [line[i] for line in lines] for i, name in enumerate(header)}
    kinds = {column.name: column for column in columns}
    return pd.DataFrame(
        {
            name: _parse_column(path, kinds[name], texts, required)
            if name in kinds
            else pd.Series(texts, dtype="object")
            for name, texts in by_name.items()
        }
    )


def _read_lines(path: Path) -> list[list[str]]:
    try:
        with open(path, newline="", encoding="utf-8") as handle:
            lines = [line for line in csv.reader(handle, strict=True) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a CSV file in UTF-8 ({error})") from None
    if not lines:
        raise UserError(f"{path}: the file is empty; a header line is needed")
    if len(set(lines[0])) != len(lines[0]):
        raise UserError(f"{path}: a column stands twice in the header")
    return lines


def frame_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """``rows`` as a frame with the types that `read_table` gives the same table."""
    return pd.DataFrame(
        {
            column.name: pd.Series(
                [_nullable(column.kind, row.get(column.name)) for row in rows], dtype=DTYPES[column.kind]
            )
            for column in columns
        }
    )


def _nullable(kind: Kind, value: Any) -> Any:
    if value is None:
        return {"str": "", "float": math.nan}.get(kind, pd.NA)
    return value


def _parse_column(path: Path, column: Column, texts: Sequence[str], required: bool) -> pd.Series:
    values: list[Any] = []
    for number, text in enumerate(texts, start=2):
        if text == "" and (column.nullable or not required or column.kind == "str"):
            values.append(_nullable(column.kind, None))
            continue
        try:
            values.append(parse_value(column.kind, text))
        except ValueError:
            raise UserError(f"{path} line {number}: {column.name} is '{text}', not a {column.kind}") from None
    return pd.Series(values, dtype=DTYPES[column.kind])


def parse_value(kind: Kind, text: str) -> Any:
    """The value that ``text`` stands for.

    Raises:
        ValueError: ``text`` is not of that kind, or a number that is not finite.
    """
    if kind == "str":
        return text
    if kind == "bool":
        if text.lower() not in _BOOLEANS:
            raise ValueError(text)
        return _BOOLEANS[text.lower()]
    if kind == "int":
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
