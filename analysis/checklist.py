"""What was fitted and how, filled in by the code: what a reader needs to do the fit again."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.arm_points import ArmPoints
from analysis.fit_result import FitResult
from analysis.multipliers.base import LEVEL, MIN_SIZES
from analysis.study import Study


def checklist(
    study: Study, points: Mapping[str, ArmPoints], results: Sequence[FitResult]
) -> list[dict[str, Any]]:
    """Items and their values, in the order of a methods section."""
    cells = study.cells
    used = cells[~cells["excluded"].astype(bool)]
    forms = list(dict.fromkeys(result.form for result in results))
    usable = [result for result in results if result.usable]
    entries: list[tuple[str, Any]] = [
        ("study", study.plan.study),
        ("question", study.plan.description),
        ("arms", list(study.plan.arms)),
        ("baseline", study.plan.baseline),
        ("forms", forms),
        ("N", "all unique parameters for params; axis 6nd counts sublayers and stream only, 6nd_total all"),
        ("D", "training tokens, passes counted"),
        ("C", "training FLOPs of the arm itself: forward + backward, causal attention, head, stream"),
        ("loss", "nats a token on fixed validation tokens after the last step of the schedule"),
        ("validation tokens", _distinct(used["val_tokens"])),
        ("largest standard error of a validation loss", _largest(used["val_loss_se"])),
        ("checkpoints used", "the last of each run; none from the middle of a schedule"),
        ("points", {arm: len(p) for arm, p in points.items()}),
        ("points used", {arm: p.all_spec_ids for arm, p in points.items()}),
        ("seeds averaged at each point", {arm: [int(n) for n in p.num_seeds] for arm, p in points.items()}),
        ("runs left out by hand", study.outliers or "none"),
        ("compute range", {arm: _range(p) for arm, p in points.items()}),
        ("distinct sizes needed", MIN_SIZES),
        ("objective", "least squares on ln loss, points weighted by their seeds"),
        ("optimiser", "variable projection over the exponents, then damped Newton"),
        ("starts that reach the best", {_name(r): r.diagnostics.get("starts_at_best") for r in usable}),
        ("residual sd (ln loss)", {_name(r): r.diagnostics.get("residual_sd") for r in usable}),
        ("interval level", LEVEL),
        ("data set", _distinct(used["dataset"])),
        ("sequence length", _distinct(used["seq_len"])),
        ("vocabulary", _distinct(used["vocab_size"])),
        ("learning rates", _distinct(used["lr"])),
        ("recipe", _distinct(used["recipe"])),
        ("schedule", _distinct(used["schedule"])),
        ("batch tokens", _distinct(used["batch_tokens"])),
        ("weight decay", _distinct(used["weight_decay"])),
        ("precision", _distinct(used["precision"])),
        ("device", _distinct(used["device"])),
        ("passes over the data, most", _largest(used["data_passes"])),
        ("torch", _distinct(used["torch_version"])),
        ("code", _distinct(used["git_sha"])),
        ("numerics", study.plan.numerics),
    ]
    return [{"item": item, "value": value} for item, value in entries]


def _name(result: FitResult) -> str:
    return f"{result.form}, {result.group}"


def _range(points: ArmPoints) -> list[float]:
    return [float(points.compute.min()), float(points.compute.max())] if len(points) else []


def _distinct(values: pd.Series) -> list[Any]:
    return [v.item() if hasattr(v, "item") else v for v in sorted(values.dropna().unique())]


def _largest(values: pd.Series) -> float | None:
    known = values.dropna()
    return float(known.max()) if len(known) else None
