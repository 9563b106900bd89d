"""The data dictionary of results/, written from the contracts so that it cannot drift."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from analysis import study
from analysis.plan_file import PlanCell, Throughput
from analysis.schema import (
    CURVE_COLUMNS,
    DYNAMICS_COLUMNS,
    EXCLUSION_COLUMNS,
    MULTIPLIER_COLUMNS,
    OUTLIER_COLUMNS,
    RUN_COLUMNS,
    SCHEMA_VERSION,
    Column,
)
from attnres.files import write_text


def dictionary() -> str:
    """Markdown: the files of a study and every column of its tables."""
    layout = (study.__doc__ or "").split("\n", 1)[1].strip()
    parts = [
        "# results/: one folder a study",
        "Written by `python -m analysis dictionary` from the contracts in the code "
        f"(schema {SCHEMA_VERSION}). "
        "Numbers are in SI base units without prefixes (FLOPs, tokens, seconds, bytes), losses in nats a "
        "token. An empty cell means that there is no value.",
        "## Files",
        f"```\n{layout}\n```",
        _table("runs.csv", (*RUN_COLUMNS, *EXCLUSION_COLUMNS)),
        _table("curves.parquet", CURVE_COLUMNS),
        _table("dynamics/<spec_id>.parquet", DYNAMICS_COLUMNS),
        _table("exclusions.csv", OUTLIER_COLUMNS),
        _table("multipliers.csv", MULTIPLIER_COLUMNS),
        _fields("plan.json: cells", PlanCell),
        _fields("plan.json: throughput", Throughput),
    ]
    return "\n\n".join(parts) + "\n"


def write_dictionary(path: Path) -> None:
    """Write the dictionary to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dictionary())


def _table(name: str, columns: Sequence[Column]) -> str:
    rows = [
        f"| {c.name} | {c.kind} | {c.unit} | {'yes' if c.nullable else ''} | {c.meaning} |" for c in columns
    ]
    return "\n".join(
        [
            f"## {name}",
            "",
            "| column | type | unit | may be empty | meaning |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def _fields(name: str, model: type[BaseModel]) -> str:
    rows = [f"| {key} | {field.description} |" for key, field in model.model_fields.items()]
    return "\n".join([f"## {name}", "", "| field | meaning |", "|---|---|", *rows])
