"""The sections about the runs themselves: counts, exclusions, checklist, every run, versions."""

import platform
from importlib.metadata import version
from typing import Any

from analysis.report.document import (
    RUN_ANCHOR,
    Block,
    Bullets,
    Code,
    Inline,
    Line,
    Paragraph,
    Row,
    Section,
    joined,
    line,
    row,
    run_link,
    table,
)
from analysis.report.facts import Facts
from analysis.schema import SCHEMA_VERSION, Status
from analysis.wording import MISSING, count_of, digits, is_missing, loss_text

VERSIONED = ("attnres-scaling", "matplotlib", "numpy", "pandas", "scipy")


def counts_section(facts: Facts) -> Section:
    """Planned against what became of it, arm by arm; then every run that is left out, and why."""
    counts = facts.fits("counts")
    states = [status.value for status in Status]
    rows = [
        row(Code(arm), sum(own.values()), *(own[s] for s in states)) for arm, own in counts["by_arm"].items()
    ]
    rows.append(row("all arms", counts["planned"], *(counts[state] for state in states)))
    if counts["trunks"]["planned"]:
        rows.append(row("trunks, beside them", *(counts["trunks"][name] for name in ("planned", *states))))
    blocks: list[Block] = [table("Runs by arm", "arm | >planned | >" + " | >".join(states), rows)]
    if counts["not_in_plan"]:
        stray = joined([run_link(spec_id) for spec_id in counts["stray"]])
        number = count_of(counts["not_in_plan"], "run")
        blocks.append(Paragraph(line(f"{number} not in the plan, left out: ", stray, ".")))
    left = [
        row(
            run_link(r["spec_id"]),
            Code(r["variant"]),
            r["size"],
            r["seed"],
            r["status"],
            r["at_step"],
            r["reason"] + (f": {r['why']}" if r["why"] else ""),
        )
        for r in counts["excluded"]
    ]
    if left:
        columns = "run | arm | size | >seed | status | >at step | reason"
        blocks.append(table("Runs left out of the fits", columns, left))
    else:
        blocks.append(Paragraph(line("No run is left out of the fits.")))
    if facts.notes:
        blocks.append(Bullets(tuple(line(note) for note in facts.notes)))
    return Section("Runs counted", "counts", tuple(blocks))


def checklist_section(facts: Facts) -> Section:
    """What was fitted and how: all that is needed to do it again."""
    rows = (row(entry["item"], _value(entry["item"], entry["value"])) for entry in facts.fits("checklist"))
    return Section(
        "Checklist of the fit", "checklist", (table("What was fitted and how", "item | value", rows),)
    )


def _value(item: str, value: Any) -> Line:
    if item != "points used":
        return (_flat(value),)
    parts: list[Inline] = []
    for arm, spec_ids in value.items():
        parts += [Code(arm), ": ", *joined([run_link(spec_id) for spec_id in spec_ids]), "; "]
    return tuple(parts[:-1])


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_flat(own)}" for key, own in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(_flat(own) for own in value) or "none"
    if isinstance(value, float):
        return digits(value)
    return MISSING if is_missing(value) else str(value)


def runs_section(facts: Facts) -> Section:
    """Every run of the study, stray ones too; the target of every run link."""
    sizes = {cell.spec_id: cell.size for cell in facts.plan.cells}
    rows = (
        _run_row(run, sizes.get(run["spec_id"], "not in plan")) for run in facts.study.runs.to_dict("records")
    )
    columns = "run | arm | size | >seed | >budget | >rate | >tokens | >FLOPs | >val. loss | >s.e. | >passes"
    columns += " | >tokens/s | >memory (MB) | status | left out"
    return Section("Runs", "runs", (table("Every run: its row in runs.csv", columns, rows),))


def _run_row(run: dict[Any, Any], size: str) -> Row:
    return row(
        run["spec_id"],
        Code(run["variant"]),
        size,
        run["seed"],
        digits(run["budget"], 3),
        digits(run["lr"], 3),
        digits(run["tokens"]),
        digits(run["compute"]),
        loss_text(run["val_loss"]),
        loss_text(run["val_loss_se"]),
        digits(run["data_passes"], 2),
        digits(run["tokens_per_second"], 3),
        None if is_missing(run["peak_memory_bytes"]) else digits(run["peak_memory_bytes"] / 1e6, 3),
        run["status"],
        run["exclusion_reason"] if run["excluded"] else None,
        anchor=f"{RUN_ANCHOR}{run['spec_id']}",
    )


def hovers(facts: Facts) -> dict[str, str]:
    """What a point of a figure says of its run, by spec_id."""
    found = {}
    for run in facts.study.cells.to_dict("records"):
        loss, compute, tokens = (
            loss_text(run["val_loss"]),
            digits(run["compute"], 3),
            digits(run["tokens"], 3),
        )
        found[run["spec_id"]] = (
            f"{run['variant']}, {run['size']}, seed {run['seed']}: loss {loss} nats at {compute} FLOPs, "
            f"{tokens} tokens; {run['status']}; run {run['spec_id']}"
        )
    return found


def versions_section(facts: Facts) -> Section:
    """What made the report and what trained the runs."""
    rows = [row(name, version(name)) for name in VERSIONED]
    rows += [row("python", platform.python_version()), row("table schema", SCHEMA_VERSION)]
    rows.append(row("numerics of the plan", facts.plan.numerics))
    trained = {"torch_version": "torch that trained", "git_sha": "code that trained", "device": "device"}
    for column, words in trained.items():
        values = sorted({str(v) for v in facts.study.runs[column] if not is_missing(v)})
        rows.append(row(words, ", ".join(values)))
    return Section("Versions", "versions", (table("Versions", "what | version", rows),))
