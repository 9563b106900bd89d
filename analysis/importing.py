"""Runs of others -> a study: a CSV or an MLflow experiment becomes plan.json and runs.csv.

Needed of every run: variant, size, tokens, val_loss and compute (training FLOPs of the arm itself), under
these names or mapped to them. All other columns of the contract are taken where they are given and left
empty where not; an axis that needs an empty column is refused, not guessed.
"""

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analysis.exclusions import exclusion_of, mark_duplicates
from analysis.losses import MAX_LOSS, MIN_LOSS
from analysis.plan_file import Plan, PlanCell, Role, write_plan
from analysis.run_rows import check_row
from analysis.schema import EXCLUSION_COLUMNS, RUN_COLUMNS, SCHEMA_VERSION, Column, Exclusion, Status
from analysis.study import RUNS_FILE
from analysis.tabular import parse_value, write_table
from attnres.errors import UserError, one_line

NEEDED = ("variant", "size", "tokens", "val_loss", "compute")
EXTRA = ("size", "params", "role")
"""Columns of a plan's cell that are not in runs.csv; ``size`` is needed."""

_COLUMNS = {column.name: column for column in RUN_COLUMNS}
_KINDS = {"size": "str", "role": "str", "params": "int"} | {c.name: c.kind for c in RUN_COLUMNS}


def import_csv(path: Path, folder: Path, baseline: str, mapping: Mapping[str, str]) -> int:
    """Make a study in ``folder`` from a CSV of runs; returns the number of runs.

    Args:
        path: a header line and one run a line.
        folder: results/<study>, made if need be; a study there is replaced.
        baseline: value of ``variant`` that the others are compared with.
        mapping: our column -> theirs, where the names differ.

    Raises:
        UserError: a column or value is missing or is not what its column says; line and column are named.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file")
    with open(path, newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        header = list(reader.fieldnames or [])
        lines = list(reader)
    names = _names(str(path), header, mapping)
    texts = [
        (f"{path} line {number}", {ours: line[theirs] or "" for ours, theirs in names.items()})
        for number, line in enumerate(lines, start=2)
    ]
    return _write(folder, baseline, texts)


def import_mlflow(uri: str, experiment: str, folder: Path, baseline: str, mapping: Mapping[str, str]) -> int:
    """Make a study from every run of an MLflow experiment; returns the number of runs.

    Args:
        uri: tracking URI.
        experiment: its name.
        folder: results/<study>.
        baseline: value of ``variant`` that the others are compared with.
        mapping: our column -> ``params.X``, ``metrics.X``, ``tags.X`` or ``attributes.status``.

    Raises:
        UserError: no such experiment, an impossible source, or a value that is missing.
    """
    from mlflow import MlflowClient  # slow to import, and needed here only
    from mlflow.exceptions import MlflowException

    missing = [name for name in NEEDED if name not in mapping]
    if missing:
        raise UserError(f"--map is needed for {', '.join(missing)}, as {missing[0]}=params.NAME")
    for ours, source in mapping.items():
        _check_source(ours, source)
    store = uri.removeprefix("sqlite:///")
    if store != uri and not Path(store).is_file():  # the client would make an empty one
        raise UserError(f"{uri}: there is no file {store}")
    client = MlflowClient(tracking_uri=uri)
    try:
        found = client.get_experiment_by_name(experiment)
    except MlflowException as error:
        raise UserError(f"{uri}: {str(error).splitlines()[0]}") from error
    if found is None:
        raise UserError(f"{uri}: no experiment '{experiment}'")
    texts = []
    token: str | None = None
    while True:
        page = client.search_runs([found.experiment_id], max_results=1000, page_token=token)
        for run in page:
            values = {ours: _mlflow_value(run, source) for ours, source in mapping.items()}
            texts.append((f"{experiment} run {run.info.run_id}", values | {"run_id": run.info.run_id}))
        token = page.token
        if not token:
            break
    return _write(folder, baseline, sorted(texts))


def _check_source(ours: str, source: str) -> None:
    if ours not in _KINDS:
        raise UserError(f"--map {ours}: no such column; known are {', '.join(_KINDS)}")
    kind, _, name = source.partition(".")
    if kind not in ("params", "metrics", "tags", "attributes") or not name:
        raise UserError(f"--map {ours}={source}: must be params.X, metrics.X, tags.X or attributes.status")


def _mlflow_value(run: Any, source: str) -> str:
    kind, _, name = source.partition(".")
    if kind == "attributes":
        return str(getattr(run.info, name, ""))
    value = getattr(run.data, kind).get(name)
    return "" if value is None else str(value)


def _names(where: str, header: Sequence[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """Our column -> theirs, for every column of ours that the header has."""
    for ours, theirs in mapping.items():
        if ours not in _KINDS:
            raise UserError(f"--map {ours}: no such column; known are {', '.join(_KINDS)}")
        if theirs not in header:
            raise UserError(
                f"--map {ours}={theirs}: {where} has no column {theirs}; it has {', '.join(header)}"
            )
    names = {ours: mapping.get(ours, ours) for ours in _KINDS if mapping.get(ours, ours) in header}
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise UserError(f"{where}: no column {', '.join(missing)}; map yours with --map {missing[0]}=THEIRS")
    return names


def _write(folder: Path, baseline: str, texts: Iterable[tuple[str, Mapping[str, str]]]) -> int:
    rows: list[dict[str, Any]] = []
    cells: list[PlanCell] = []
    places: list[str] = []
    for number, (where, values) in enumerate(texts):
        row = _row(where, values)
        row["spec_id"] = row["spec_id"] or _digest(number, *sorted(values.items()))
        rows.append(row)
        places.append(where)
        cells.append(_cell(where, row, values))
    arms = list(dict.fromkeys(row["variant"] for row in rows))
    if baseline not in arms:
        raise UserError(f"no run of the baseline '{baseline}'; the arms are {', '.join(arms) or 'none'}")
    arms.remove(baseline)
    cells = _with_baseline_budget(cells, baseline)
    ids = [cell.spec_id for cell in cells]
    twice = next((i for i in ids if ids.count(i) > 1), None)
    if twice is not None:
        raise UserError(f"spec_id {twice} stands at two runs")
    plan = Plan(
        grid="imported",
        study=folder.name,
        description="runs imported from elsewhere",
        baseline=baseline,
        arms=(baseline, *arms),
        numerics=1,
        cells=tuple(cells),
    )
    for row, cell in zip(rows, cells, strict=True):
        row["budget"] = cell.budget
        reason = exclusion_of(row, cell.tokens)
        row["excluded"], row["exclusion_reason"] = reason is not Exclusion.NONE, reason.value
    seen: set[str] = set()
    for where, row in zip(places, rows, strict=True):
        try:
            check_row(row, seen)
        except ValueError as error:
            raise UserError(f"{where}: the run {error}") from None
    mark_duplicates(rows, {c.spec_id: (c.variant, c.size, c.tokens, c.seed, c.lr, c.role) for c in cells})
    write_plan(folder, plan)
    write_table(folder / RUNS_FILE, (*RUN_COLUMNS, *EXCLUSION_COLUMNS), rows)
    return len(rows)


def _row(where: str, values: Mapping[str, str]) -> dict[str, Any]:
    row = {column.name: _value(where, column, values.get(column.name, "")) for column in RUN_COLUMNS}
    for name in ("tokens", "compute"):
        if row[name] is None or row[name] <= 0:
            raise UserError(f"{where}: {name} is '{values.get(name, '')}'; a positive number is needed")
    if not row["variant"]:
        raise UserError(f"{where}: no variant")
    loss = row["val_loss"]
    if loss is not None and not MIN_LOSS <= loss <= MAX_LOSS:
        raise UserError(f"{where}: val_loss is {loss}; a loss is {MIN_LOSS:g} to {MAX_LOSS:g} nats a token")
    status = row["status"].lower()
    known = {status.value for status in Status}
    if status not in known:
        # MLflow's words, or none: a run with a finite loss counts as finished.
        status = "failed" if status in ("killed", "failed") else ("diverged" if loss is None else "finished")
    row |= {"status": status, "schema_version": SCHEMA_VERSION, "attempts": row["attempts"] or 1}
    row["seed"] = 0 if row["seed"] is None else row["seed"]
    row["stream"] = row["stream"] or row["variant"]
    return row


def _value(where: str, column: Column, text: str) -> Any:
    if text == "":
        return "" if column.kind == "str" else None
    try:
        if column.kind == "int":
            number = float(text)
            if not number.is_integer():
                raise ValueError(text)
            return int(number)
        if column.kind == "float" and not math.isfinite(float(text)):
            return None
        return parse_value(column.kind, text)
    except (ValueError, OverflowError):
        raise UserError(f"{where}: {column.name} is '{text}', not a {column.kind}") from None


def _cell(where: str, row: Mapping[str, Any], values: Mapping[str, str]) -> PlanCell:
    size = values.get("size", "")
    if not size:
        raise UserError(f"{where}: no size")
    role: Role
    match values.get("role", "") or "ladder":
        case "ladder" | "rate" | "null" | "overhead_only" as role:
            pass
        case other:
            raise UserError(f"{where}: role is '{other}'; ladder, rate, null or overhead_only is needed")
    parts = [row[f"params_{part}"] for part in ("embedding", "decoder", "stream", "head")]
    params = _value(where, Column("params", "int", "", ""), values.get("params", ""))
    if params is None and all(part is not None for part in parts):
        params = sum(parts)
    # No rate is one unknown rate, the same for all: it pairs by size, tokens and seed alone.
    lr = 1.0 if row["lr"] is None else row["lr"]
    facts = {
        "spec_id": row["spec_id"],
        "pair_id": _digest(size, row["tokens"], row["seed"], row["data_seed"], row["lr"]),
        "variant": row["variant"],
        "stream": row["stream"],
        "stream_options": row["stream_options"] or "{}",
        "size": size,
        "params": params,
        "budget": row["compute"] if row["budget"] is None else row["budget"],
        "tokens": row["tokens"],
        "seed": row["seed"],
        "lr": lr,
        "role": role,
    }
    try:
        return PlanCell.model_validate(facts)
    except ValidationError as error:
        raise UserError(f"{where}: {one_line(error)}") from error


def _with_baseline_budget(cells: Sequence[PlanCell], baseline: str) -> list[PlanCell]:
    """Cells with the budget of the baseline's run at the same size and tokens, so that arms share rungs."""
    budget = {(c.size, c.tokens): c.budget for c in cells if c.variant == baseline}
    return [c.model_copy(update={"budget": budget.get((c.size, c.tokens), c.budget)}) for c in cells]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:12]
