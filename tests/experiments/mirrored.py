"""Run directories made up, mirrored to a store, and everything that a person can see in it."""

import json
from pathlib import Path
from typing import Any

from experiments import mlflow_store
from experiments.mlflow_store import MirroredRun, Store
from experiments.record import RunRecord, RunStatus, write_record
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.tracking import open_tracker, store_uri


def rows(first: int, last: int, *, shift: float = 0.0, slow: float = 1.0) -> list[dict[str, Any]]:
    return [
        {"step": step, "tokens": step * 512, "train_loss": 4.0 - step / 100 + shift, "lr": 0.1, "grad_norm": 1.5,
         **({"val_loss": 4.0 + shift} if step % 6 == 0 else {}), "seconds": slow * step / 10}
        for step in range(first, last + 1)
    ]  # fmt: skip


def write_rows(run_dir: Path, content: list[dict[str, Any]]) -> None:
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))


def make_dir(spec: RunSpec, runs: Path) -> Path:
    run_dir = runs / spec.spec_id
    run_dir.mkdir(exist_ok=True)
    (run_dir / "spec.json").write_text(
        json.dumps(spec.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
    )
    return run_dir


def record_of(spec: RunSpec, status: RunStatus, **changes: Any) -> RunRecord:
    finished = status is RunStatus.FINISHED
    fields = {
        "spec_id": spec.spec_id, "run_id": "", "parent_id": "", "stream": spec.stream.name,
        "variant": spec.stream.variant, "stream_options": "{}", "dataset": spec.dataset, "seed": spec.seed,
        "data_seed": spec.data_seed, "numerics": spec.numerics, **spec.shape.model_dump(),
        "params_embedding": 1, "params_decoder": 1, "params_stream": 0, "params_head": 1,
        "flops_per_token_matmul": 1.0, "flops_per_token_attention": 1.0, "flops_per_token_head": 1.0,
        "flops_per_token_stream": 0.0, "budget": spec.budget, "tokens": spec.tokens, "compute": 3.0 * spec.tokens,
        "batch_tokens": spec.train.batch_tokens, "steps": spec.steps, "lr": spec.train.lr, "warmup": spec.train.warmup,
        "schedule": spec.train.schedule, "weight_decay": spec.train.weight_decay, "recipe": spec.train.recipe,
        "data_passes": 1.0,
        "val_loss": 4.0 if finished else None, "val_loss_se": 0.1 if finished else None, "val_tokens": 1000,
        "val_bits_per_byte": 5.8 if finished else None, "train_loss": 3.9, "status": status,
        "failed_at_step": None, "attempts": 1, "wall_seconds": 2.4, "tokens_per_second": 1000.0,
        "peak_memory_bytes": 10**6, "device": "cpu", "precision": "fp32", "threads": 1, "compile": False,
        "processes": 1, "strategy": "single",
        "kernels": "c", "torch_version": "2", "git_sha": "abc", "started_at": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    return RunRecord(**{**fields, **changes})


def finish_dir(spec: RunSpec, runs: Path, status: RunStatus = RunStatus.FINISHED, last: int = 24) -> Path:
    run_dir = make_dir(spec, runs)
    write_rows(run_dir, rows(1, last))
    write_record(run_dir, record_of(spec, status))
    return run_dir


def mirror_run(
    spec: RunSpec, runs: Path, told: list[dict[str, Any]], status: RunStatus, **settings: Any
) -> tuple[str, Path]:
    """A run as `experiments.run` does it: told row by row, the record, the end."""
    run_dir = make_dir(spec, runs)
    tracker = open_tracker(spec, run_dir, Settings(runs=runs, **settings))
    for row in told:
        tracker.log(row)
    run_id = tracker.run_id
    earlier = [row for row in _old_rows(run_dir) if not told or row["step"] < told[0]["step"]]
    write_rows(run_dir, earlier + told)
    write_record(run_dir, record_of(spec, status))
    tracker.close(status)
    return run_id, run_dir


def _old_rows(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def client(runs: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store_uri(runs))


def all_runs(runs: Path) -> list[Any]:
    experiment = client(runs).get_experiment_by_name(mlflow_store.EXPERIMENT)
    return client(runs).search_runs([experiment.experiment_id], max_results=1000)


def history(runs: Path, run_id: str, key: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client(runs).get_metric_history(run_id, key)]


def contents(runs: Path) -> list[Any]:
    """Everything a person can see in the store."""
    return sorted(
        (run.data.tags["spec_id"], run.info.run_id, run.info.status, run.info.start_time, run.info.end_time,
         run.data.params, run.data.tags, sorted((key, history(runs, run.info.run_id, key)) for key in run.data.metrics),
         sorted(item.path for item in client(runs).list_artifacts(run.info.run_id)))
        for run in all_runs(runs)
    )  # fmt: skip


def series(first: int, last: int, shift: float = 0.0) -> list[tuple[int, float]]:
    return [(row["step"], row["train_loss"]) for row in rows(first, last, shift=shift)]


def killed_run(spec: RunSpec, runs: Path, last: int) -> None:
    """What a SIGKILL leaves: rows in the directory and in the store, and nobody who says that it ended."""
    run = MirroredRun(Store(store_uri(runs), runs), spec, make_dir(spec, runs), Settings(runs=runs))
    run.resume()
    run.send(rows(1, last))
    write_rows(runs / spec.spec_id, rows(1, last))
