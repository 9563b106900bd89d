"""Made-up studies with a known answer: the files a sweep would leave, without training anything.

``python -m tests.analysis.planted FOLDER`` writes one to look at.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.plan_file import Plan, PlanCell, Throughput, read_plan, write_plan
from analysis.schema import EXCLUSION_COLUMNS, RUN_COLUMNS, SCHEMA_VERSION
from analysis.study import CURVES_FILE, RUNS_FILE
from analysis.tabular import write_table

ARMS = ("additive", "block_attnres[num_blocks=4]", "full_attnres")
BATCH_TOKENS, SEQ_LEN, VOCAB = 1024, 128, 256
FIRST_BUDGET = 1e12


@dataclass(frozen=True)
class PlantedStudy:
    """Plan, rows of runs.csv and rows of the curves of a made-up study."""

    plan: Plan
    rows: list[dict[str, Any]]
    curves: list[dict[str, Any]]


def planted(
    *,
    compute_multiplier: float | Sequence[float] = 1.25,
    irreducible: float = 0.0,
    exponent: float = 0.057,
    sizes: int = 5,
    seeds: int | Sequence[int] = (2, 2, 1),
    noise: float = 0.002,
    lack_of_fit: float = 0.003,
    correlation: float = 0.5,
    overhead: float = 0.0,
    range: float = 30.0,
    arms: Sequence[str] = ARMS,
    loss: float = 2.0,
    curves: bool = True,
    branches: int = 1,
    trunk_noise: float = 0.0,
    seed: int = 0,
) -> PlantedStudy:
    """Losses E + A (m C / C_mid)^-a of every arm, C its own FLOPs, with noise.

    Args:
        compute_multiplier: m of every arm but the first, or one for each of them.
        irreducible: E, nats.
        exponent: a.
        sizes: number of (size, budget) cells of an arm.
        seeds: seeds of each size, from the smallest; the last number holds for the rest.
        noise: standard deviation of a run, nats.
        lack_of_fit: standard deviation, over sizes, of a shift that all arms share, nats.
        correlation: of the noise of two arms at the same seed.
        overhead: FLOPs of the stream over all others, in every arm but the first.
        range: largest budget over smallest.
        arms: variant labels, the baseline first.
        loss: baseline loss at the geometric middle of the budgets.
        curves: make curves too.
        branches: budgets of every size, a factor of two apart; more than one share a trunk a seed and arm.
        trunk_noise: standard deviation of what the branches of a trunk have in common, nats.
        seed: of the noise.
    """
    rng = np.random.default_rng(seed)
    factors = np.broadcast_to(np.asarray(compute_multiplier, float), (len(arms) - 1,))
    multiplier_of = dict(zip(arms, (1.0, *factors), strict=True))
    counts = (
        [seeds] * sizes
        if isinstance(seeds, int)
        else [seeds[min(i, len(seeds) - 1)] for i in np.arange(sizes)]
    )
    budgets = FIRST_BUDGET * range ** (np.arange(sizes) / max(sizes - 1, 1))
    middle = FIRST_BUDGET * range**0.5
    cells: list[PlanCell] = []
    rows: list[dict[str, Any]] = []
    curve_rows: list[dict[str, Any]] = []
    for i, first in enumerate(budgets):
        shape = _shape(i)
        shared_shift = rng.normal(0, lack_of_fit)
        base = _flops(shape)
        for run_seed in np.arange(counts[i]):
            trunk = {arm: rng.normal(0, trunk_noise) for arm in arms} if branches > 1 else {}
            for j in np.arange(branches):
                budget = first * 2.0**j
                tokens = max(1, round(budget / sum(base.values()) / BATCH_TOKENS)) * BATCH_TOKENS
                common = rng.normal()
                for arm in arms:
                    flops = dict(base)
                    if arm != arms[0]:
                        flops["flops_per_token_stream"] = overhead * sum(base.values())
                    compute = sum(flops.values()) * tokens
                    own = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.normal()
                    value = (
                        irreducible
                        + (loss - irreducible) * (multiplier_of[arm] * compute / middle) ** -exponent
                        + shared_shift
                        + noise * own
                        + trunk.get(arm, 0.0)
                    )
                    shape_id = f"{shape['depth']:02d}{shape['width']:04d}{run_seed:02d}"
                    pair = shape_id + (f"b{j}" if branches > 1 else "")
                    spec_id = f"{pair}{arms.index(arm):04d}"
                    row = _row(
                        spec_id, arm, shape, flops, float(budget), int(tokens), int(run_seed), float(value)
                    )
                    if branches > 1:
                        row |= {"parent_id": f"trunk{shape_id}{arms.index(arm)}", "schedule": "wsd"}
                    rows.append(row)
                    cells.append(_cell(row, pair, arm))
                    if curves:
                        curve_rows += _curve(row, rng)
    plan = Plan(
        grid="planted",
        study="planted",
        description="made-up losses with a known answer",
        baseline=arms[0],
        arms=tuple(arms),
        numerics=1,
        cells=tuple(cells),
    )
    return PlantedStudy(plan, rows, curve_rows)


def planted_study(folder: Path, **options: Any) -> Path:
    """Write plan.json, runs.csv and curves.parquet of a made-up study into ``folder``; see `planted`."""
    study = planted(**options)
    write_study(folder, study)
    return folder


def write_study(folder: Path, study: PlantedStudy) -> None:
    """Write the files of ``study`` into ``folder``."""
    write_plan(folder, study.plan)
    rows = [{"excluded": False, "exclusion_reason": "none", **row} for row in study.rows]
    write_table(folder / RUNS_FILE, (*RUN_COLUMNS, *EXCLUSION_COLUMNS), rows)
    if study.curves:
        pd.DataFrame(study.curves).to_parquet(folder / CURVES_FILE, index=False)


def plan_throughput(
    folder: Path,
    arms: Sequence[str],
    ratio: float,
    lo: float | None = None,
    hi: float | None = None,
    sizes: Sequence[str] | None = None,
) -> None:
    """Put the same ratio for every arm and size (all of the plan's, or ``sizes``) into plan.json."""
    plan = read_plan(folder)
    first = {(cell.size, cell.variant): cell.spec_id for cell in reversed(plan.cells)}
    rows = tuple(
        Throughput(
            size=size,
            variant=arm,
            baseline=plan.baseline,
            spec_ids=(first[size, plan.baseline], first[size, arm]),
            ratio=ratio,
            lo=lo,
            hi=hi,
            rounds=11,
            machine="test",
        )
        for size in (sizes or dict.fromkeys(cell.size for cell in plan.cells))
        for arm in arms
    )
    write_plan(folder, plan.model_copy(update={"throughput": rows}))


def planted_runs(folder: Path, runs_root: Path, **options: Any) -> PlantedStudy:
    """Write plan.json into ``folder`` and one run directory a run under ``runs_root``."""
    study = planted(**options)
    write_plan(folder, study.plan)
    for row in study.rows:
        run_dir = runs_root / row["spec_id"]
        run_dir.mkdir(parents=True)
        (run_dir / "record.json").write_text(json.dumps(row))
        lines = [
            json.dumps({k: v for k, v in point.items() if k != "spec_id" and v is not None})
            for point in study.curves
            if point["spec_id"] == row["spec_id"]
        ]
        (run_dir / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return study


def _shape(i: int) -> dict[str, Any]:
    width = 32 * (i + 2)
    return {
        "depth": i + 2,
        "width": width,
        "num_heads": i + 2,
        "mlp_width": 3 * width,
        "vocab_size": VOCAB,
        "seq_len": SEQ_LEN,
        "tied": True,
    }


def _flops(shape: dict[str, Any]) -> dict[str, float]:
    depth, width = shape["depth"], shape["width"]
    return {
        "flops_per_token_matmul": 6.0 * 13 * depth * width**2,
        "flops_per_token_attention": 12.0 * depth * width * (SEQ_LEN + 1) / 2,
        "flops_per_token_head": 6.0 * VOCAB * width,
        "flops_per_token_stream": 0.0,
    }


def _row(
    spec_id: str,
    arm: str,
    shape: dict[str, Any],
    flops: dict[str, float],
    budget: float,
    tokens: int,
    seed: int,
    loss: float,
) -> dict[str, Any]:
    name, _, options = arm.partition("[")
    pairs = (option.split("=") for option in options.rstrip("]").split(",") if option)
    per_token = sum(flops.values())
    speed = 2e10 / per_token
    return {
        "spec_id": spec_id,
        "run_id": "",
        "parent_id": "",
        "stream": name,
        "variant": arm,
        "stream_options": json.dumps({k: int(v) for k, v in pairs}, separators=(",", ":"), sort_keys=True),
        "dataset": "synthetic",
        "seed": seed,
        "data_seed": seed,
        "numerics": 1,
        **shape,
        "params_embedding": VOCAB * shape["width"],
        "params_decoder": 13 * shape["depth"] * shape["width"] ** 2,
        "params_stream": 0 if name == "additive" else 2 * (2 * shape["depth"] + 1) * shape["width"],
        "params_head": 0,
        **flops,
        "budget": budget,
        "tokens": tokens,
        "compute": per_token * tokens,
        "batch_tokens": BATCH_TOKENS,
        "steps": tokens // BATCH_TOKENS,
        "lr": 3e-3,
        "warmup": 10,
        "schedule": "cosine",
        "weight_decay": 0.1,
        "recipe": "planted",
        "data_passes": tokens / 1.2e7,
        "val_loss": loss,
        "val_loss_se": 0.001,
        "val_tokens": 131072,
        "val_bits_per_byte": loss / np.log(2) / 4,
        "train_loss": loss - 0.01,
        "status": "finished",
        "failed_at_step": None,
        "attempts": 1,
        "wall_seconds": tokens / speed,
        "tokens_per_second": speed,
        "peak_memory_bytes": 500_000_000 + 16 * shape["width"],
        "device": "cpu",
        "precision": "fp32",
        "threads": 1,
        "processes": 1,
        "strategy": "single",
        "compile": False,
        "kernels": "c",
        "torch_version": "2.13.0",
        "git_sha": "0" * 40,
        "started_at": "2026-01-01T00:00:00Z",
        "schema_version": SCHEMA_VERSION,
    }


def _cell(row: dict[str, Any], pair: str, arm: str) -> PlanCell:
    return PlanCell(
        spec_id=row["spec_id"],
        pair_id=pair,
        variant=arm,
        stream=row["stream"],
        stream_options=row["stream_options"],
        size=f"d{row['depth']}w{row['width']}",
        params=row["params_embedding"] + row["params_decoder"],
        budget=row["budget"],
        tokens=row["tokens"],
        seed=row["seed"],
        lr=row["lr"],
        role="ladder",
        parent_id=row["parent_id"],
    )


def _curve(row: dict[str, Any], rng: np.random.Generator, points: int = 24) -> list[dict[str, Any]]:
    steps = np.unique(np.linspace(1, row["steps"], points).astype(int))
    share = steps / row["steps"]
    train = row["val_loss"] + 2.5 * np.exp(-6 * share) - 2.5 * np.exp(-6) + rng.normal(0, 0.02, len(steps))
    return [
        {
            "spec_id": row["spec_id"],
            "step": int(step),
            "tokens": int(step) * BATCH_TOKENS,
            "train_loss": float(train[k]),
            "lr": float(
                row["lr"] * min(1.0, step / row["warmup"]) * (0.55 + 0.45 * np.cos(np.pi * share[k]))
            ),
            "grad_norm": float(0.3 + np.exp(-4 * share[k])),
            "val_loss": (row["val_loss"] if k == len(steps) - 1 else float(train[k])) if k % 6 == 5 else None,
            "seconds": float(step * BATCH_TOKENS / row["tokens_per_second"]),
        }
        for k, step in enumerate(steps)
    ]


if __name__ == "__main__":
    print(planted_study(Path(sys.argv[1])))
