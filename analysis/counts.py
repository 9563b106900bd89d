"""Planned, finished, failed, diverged, missing, stray: counted against the plan, arm by arm."""

from typing import Any

from analysis.exclusions import EXCLUSIONS_FILE
from analysis.schema import Exclusion, Status
from analysis.study import Study


def count_runs(study: Study) -> dict[str, Any]:
    """Counts, the runs that are left out with their reasons, and notes on what limits the study."""
    plan = study.plan
    trunk = study.cells["role"] == "trunk"
    trunks, cells = study.cells[trunk], study.cells[~trunk]
    counts = {status.value: int((cells["status"] == status.value).sum()) for status in Status}
    known = set(plan.by_spec)
    stray = [str(spec_id) for spec_id in study.runs["spec_id"] if spec_id not in known]
    absent = sorted(known - set(study.runs["spec_id"]) - {c.spec_id for c in plan.cells if c.role == "trunk"})
    by_arm = {
        arm: {
            status.value: int(((cells["variant"] == arm) & (cells["status"] == status.value)).sum())
            for status in Status
        }
        for arm in plan.arms
    }
    excluded = study.runs[study.runs["excluded"].fillna(True).astype(bool)]
    return {
        "planned": sum(cell.role != "trunk" for cell in plan.cells),
        "trunks": {
            "planned": len(trunks),
            **{status.value: int((trunks["status"] == status.value).sum()) for status in Status},
        },
        **counts,
        "missing": counts["missing"] + len(absent),
        "not_in_plan": len(stray),
        "stray": stray,
        "by_arm": by_arm,
        "excluded": [
            {
                "spec_id": row["spec_id"],
                "variant": row["variant"],
                "size": plan.by_spec[row["spec_id"]].size if row["spec_id"] in known else "",
                "seed": None if row["spec_id"] not in known else plan.by_spec[row["spec_id"]].seed,
                "status": row["status"],
                "reason": row["exclusion_reason"],
                "why": study.outliers.get(row["spec_id"], ""),
                "at_step": None if row["failed_at_step"] is None else row["failed_at_step"],
            }
            for row in excluded.astype(object).where(excluded.notna(), None).to_dict("records")
        ],
        "notes": _notes(study),
    }


def _notes(study: Study) -> list[str]:
    cells = study.cells[study.cells["role"] != "trunk"]
    used = cells[~cells["excluded"].astype(bool)]
    notes = []
    for arm in study.plan.arms:
        own = cells[cells["variant"] == arm]
        lost = own[own["excluded"].astype(bool)]
        if len(lost):
            sizes = ", ".join(dict.fromkeys(lost["size"]))
            notes.append(f"{arm}: {len(lost)} of {len(own)} planned runs are left out (at {sizes})")
    by_hand = cells[cells["exclusion_reason"] == Exclusion.OUTLIER]
    if len(by_hand):
        which = "; ".join(
            f"{arm} {size} seed {seed}: {study.outliers[spec_id]}"
            for spec_id, arm, size, seed in zip(
                by_hand["spec_id"], by_hand["variant"], by_hand["size"], by_hand["seed"], strict=True
            )
        )
        notes.append(f"{len(by_hand)} runs are left out by hand ({EXCLUSIONS_FILE}): {which}")
    repeated = used[used["data_passes"] > 1]
    if len(repeated):
        worst = repeated.sort_values("data_passes").iloc[-1]
        notes.append(
            f"{len(repeated)} runs pass the data more than once (up to {worst['data_passes']:.2g} times, "
            f"{worst['size']}): their losses fall in steps and may not follow the law"
        )
    shared = used[used["trunk"] != ""]
    branched, continued = (shared[(shared["schedule"] == "wsd") == wsd] for wsd in (True, False))
    if len(continued):
        notes.append(
            f"{len(continued)} runs continue another run (parent_id): not fresh runs of their length"
        )
    if len(branched):
        notes.append(
            f"{len(branched)} runs are branches of {branched['trunk'].nunique()} trunks: branches of one "
            "trunk share its noise, so that every interval takes them as one"
        )
    validation = sorted({int(v) for v in used["val_tokens"].dropna()})
    if len(validation) > 1:
        notes.append(f"validation sets of {', '.join(map(str, validation))} tokens are mixed")
    return notes
