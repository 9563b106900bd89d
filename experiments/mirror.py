"""What of a run goes into MLflow, as plain values: parameters, tags, points, final figures.

MLflow is for searching and looking; the run directory holds everything and is the truth.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from experiments.record import RunRecord, RunStatus
from experiments.settings import Settings
from experiments.spec import RunSpec

SERIES = ("train_loss", "val_loss", "lr", "grad_norm")
"""Columns of metrics.jsonl that become series; few keys keep MLflow's pages usable (case M21)."""

DEPTH = ("largest_output", "largest_gradient", "entropy_share")
"""Columns of the rows whose step was probed (`experiments.dynamics`); series too."""

SUMMARY = ("val_bits_per_byte", "tokens_per_second", "peak_memory_bytes", "wall_seconds")
"""Fields of the record that become metrics, at the last step."""

OPERATIONAL = ("device", "threads", "processes")
"""Settings kept as tags: they may change when a run moves, and the drift is noted (case M18)."""

MOST_POINTS = 2000
"""Points of a series; of longer runs every k-th step, every validation and probe (a chart asks for 2,500)."""

LONGEST_PARAM = 250
"""Parameters are cut here: they are for searching, spec.json is the full text (case M19)."""


@dataclass(frozen=True)
class Point:
    """One value of a series; ``seconds`` of training time place it on the time axis."""

    key: str
    step: int
    value: float
    seconds: float


def params(spec: RunSpec) -> dict[str, str]:
    """Scientific settings as flat, short text; equal specs give equal parameters (case M20)."""
    fields = spec.model_dump(mode="json")
    shape, train, stream = fields.pop("shape"), fields.pop("train"), fields.pop("stream")
    flat = {**shape, **train, **fields, "steps": spec.steps, "stream": stream["name"]}
    flat |= {f"stream.{name}": value for name, value in stream["options"].items()}
    return {name: _short(value) for name, value in sorted(flat.items())}


def tags(spec: RunSpec, git_sha: str) -> dict[str, str]:
    """What identifies a run."""
    return {
        "spec_id": spec.spec_id,
        "pair_id": spec.pair_id,
        "variant": _short(spec.stream.variant),
        "git_sha": git_sha,
    }


def operational_tags(settings: Settings, before: dict[str, str]) -> dict[str, str]:
    """How the run is executed now; what changed since the tags ``before`` is added to ``drift``."""
    now = {name: _short(getattr(settings, name)) for name in OPERATIONAL}
    changed = [
        f"{name}: {before[name]} -> {now[name]}" for name in now if before.get(name, now[name]) != now[name]
    ]
    if not changed:
        return now
    return {**now, "drift": "; ".join([*filter(None, [before.get("drift")]), *changed])}


def record_tags(record: RunRecord) -> dict[str, str]:
    """How the run ended."""
    failed_at = {} if record.failed_at_step is None else {"failed_at_step": str(record.failed_at_step)}
    parent = {"parent_id": record.parent_id} if record.parent_id else {}
    return {"status": record.status.value, "attempts": str(record.attempts), **failed_at, **parent}


def points(rows: Iterable[dict[str, Any]], spec: RunSpec) -> tuple[list[Point], dict[str, str]]:
    """Rows of metrics.jsonl as points, and tags for what is not a number.

    Values that are missing or not finite never enter a series (cases M11, M12): MLflow would store
    infinity as 1.8e308.
    """
    stride = math.ceil(spec.steps / MOST_POINTS)
    found: list[Point] = []
    odd: dict[str, str] = {}
    for row in rows:
        step = row["step"]
        rare = "val_loss" in row or DEPTH[0] in row
        if step % stride and step not in (1, spec.steps) and not rare:
            continue
        for key in (*SERIES, *DEPTH):
            if key not in row:
                continue
            if row[key] is None or not math.isfinite(row[key]):
                odd.setdefault(f"not_finite.{key}", f"first at step {step}")
            else:
                found.append(Point(key, step, float(row[key]), float(row["seconds"])))
    return found, odd


def summary_points(record: RunRecord | None) -> list[Point]:
    """Final figures of a finished run; of any other they would change when it goes on."""
    if record is None or record.status is not RunStatus.FINISHED:
        return []
    values = {key: getattr(record, key) for key in SUMMARY}
    return [
        Point(key, record.steps, float(value), record.wall_seconds)
        for key, value in values.items()
        if value is not None and math.isfinite(value)
    ]


def title(spec: RunSpec) -> str:
    """A name for people; nothing reads it back."""
    return (
        f"{spec.stream.variant} d{spec.shape.depth} w{spec.shape.width} {spec.budget:.2g} FLOPs s{spec.seed}"
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_PARAM else text[: LONGEST_PARAM - 1] + "…"
