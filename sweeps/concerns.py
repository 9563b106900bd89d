"""What may be wrong with a plan although every cell of it can be trained: told before it is paid for."""

import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import psutil
import torch

from attnres.accounting import estimate_memory_bytes, parameters_of
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from experiments.checkpoint import KEPT
from experiments.data.base import DATASETS, TokenData
from experiments.spec import RunSpec
from sweeps.grid import Cell
from sweeps.plan import CellState, PlannedCell

PROCESS_BYTES = 600e6
"""Of a training process before it has a model: torch, Lightning and MLflow (560 MB measured on Linux)."""
BYTES_A_STEP = 250
"""Of a step's row in metrics.jsonl."""
LONGEST_WARMUP = 0.2
"""Share of the steps above which warm-up is most of what a short run learns by."""
WARMUP_SPREAD = 1.5
"""Warm-up shares of one grid this far apart bend the law: short runs lose more to it than long ones."""
HARMLESS_PASSES = 4.0
"""Passes over the data that cost little against fresh tokens (Muennighoff et al., arXiv 2305.16264)."""
FEWEST_OF_A_SLICE = 3
"""Cells below which a slice has no inside."""


@dataclass(frozen=True)
class Machine:
    """What the cells of a local sweep share."""

    memory_bytes: float
    """Of all cells side by side."""
    of: str
    """What has that memory."""
    free_disk_bytes: float


def this_machine(runs: Path, device: str) -> Machine:
    """The machine that plans; where another trains, only it can tell."""
    existing = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    free = float(shutil.disk_usage(existing).free)
    if device != "cpu" and torch.cuda.is_available():
        return Machine(float(torch.cuda.get_device_properties(0).total_memory), "the CUDA device", free)
    return Machine(float(psutil.virtual_memory().total), "this machine", free)


def memory_bytes(spec: RunSpec) -> float:
    """Estimated peak of a cell's training process, the whole batch in one forward pass."""
    return PROCESS_BYTES + estimate_memory_bytes(spec.shape, spec.stream, spec.train.batch_tokens)


def disk_bytes(spec: RunSpec, branches: int = 0) -> float:
    """Estimated size of a run's folder: checkpoints (parameters and two moments, fp32) and a row a step.

    A trunk keeps one more checkpoint for each of its ``branches``.
    """
    checkpoints = KEPT + branches
    return checkpoints * 12 * parameters_of(spec.shape, spec.stream).total + BYTES_A_STEP * spec.steps


def disk_bytes_left(plan: Sequence[PlannedCell]) -> float:
    """Estimated size of the folders that ``plan`` has yet to fill."""
    branches = Counter(item.cell.parent_id for item in plan)
    return sum(disk_bytes(item.cell.spec, branches[item.cell.spec.spec_id]) for item in plan if item.to_train)


def data_of(cells: Sequence[Cell], root: Path) -> dict[tuple[str, int], TokenData]:
    """The data sets of ``cells`` that are on disk already, by name and vocabulary; none is fetched."""
    wanted = {(cell.spec.dataset, cell.spec.shape.vocab_size) for cell in cells}
    found = {key: DATASETS.get(key[0]).find(key[1], root) for key in wanted}
    return {key: data for key, data in found.items() if data is not None}


def passes_of(spec: RunSpec, data: Mapping[tuple[str, int], TokenData]) -> float | None:
    """Passes over the training tokens; None where the data are not on disk yet."""
    tokens = data.get((spec.dataset, spec.shape.vocab_size))
    return None if tokens is None else tokens.passes(spec.tokens)


def concerns(
    plan: Sequence[PlannedCell], *, jobs: int, machine: Machine, data: Mapping[tuple[str, int], TokenData]
) -> list[str]:
    """Every concern, a line each, for people; empty where there is none."""
    return [
        *_memory(plan, jobs, machine),
        *_disk(plan, machine),
        *_warmup(plan),
        *_repeated(plan, data),
        *_coinciding(plan),
        *_edges(plan),
    ]


def _memory(plan: Sequence[PlannedCell], jobs: int, machine: Machine) -> Iterator[str]:
    left = sorted((item for item in plan if item.to_train), key=lambda item: -memory_bytes(item.cell.spec))
    if not left:
        return
    most = left[0].cell
    if memory_bytes(most.spec) > machine.memory_bytes:
        over = sum(memory_bytes(item.cell.spec) > machine.memory_bytes for item in left)
        yield (
            f"memory: {over} cells need more than the {_gb(machine.memory_bytes)} of {machine.of}, most "
            f"{most.label} ({_gb(memory_bytes(most.spec))}); make its batch smaller, or train elsewhere"
        )
    elif (together := sum(memory_bytes(item.cell.spec) for item in left[:jobs])) > machine.memory_bytes:
        yield (
            f"memory: the {min(jobs, len(left))} largest cells side by side need {_gb(together)}, "
            f"{machine.of} has {_gb(machine.memory_bytes)}; lower --jobs"
        )


def _disk(plan: Sequence[PlannedCell], machine: Machine) -> Iterator[str]:
    needed = disk_bytes_left(plan)
    if needed > machine.free_disk_bytes:
        yield (
            f"disk: the cells left need {_gb(needed)}, {_gb(machine.free_disk_bytes)} are free; make room "
            "(`sweeps prune` drops the checkpoints of finished cells), or choose another --runs"
        )


def _warmup(plan: Sequence[PlannedCell]) -> Iterator[str]:
    shares = [(item.cell.spec.train.warmup / item.cell.spec.steps, item.cell) for item in plan]
    most, longest = max(shares, key=lambda pair: pair[0])
    if most > LONGEST_WARMUP:
        yield f"warm-up: {most:.0%} of the steps of {longest.label}; it is too short for its recipe"
    alone = [share for share, cell in shares if not cell.parent_id and cell.role != "trunk"]
    if alone and max(alone) > WARMUP_SPREAD * min(alone):  # branches of one trunk share its warm-up
        yield (
            f"warm-up: its share differs between cells, {min(alone):.1%} to {max(alone):.1%} of the steps; "
            "the law then bends with it"
        )


def _repeated(plan: Sequence[PlannedCell], data: Mapping[tuple[str, int], TokenData]) -> Iterator[str]:
    found = [(passes_of(item.cell.spec, data) or 0.0, item.cell.label) for item in plan]
    repeated = [pair for pair in found if pair[0] > 1]
    if repeated:
        most, label = max(repeated)
        worth = "" if most <= HARMLESS_PASSES else "; beyond 4 passes repeated tokens are worth visibly less"
        yield f"data: repeated by {len(repeated)} cells, most by {label} ({most:.1f} passes){worth}"


def _coinciding(plan: Sequence[PlannedCell]) -> Iterator[str]:
    """Arms of depth attention with the same sources at every read are the same model under two names."""
    arms: dict[str, dict[str, RunSpec]] = defaultdict(dict)
    for item in plan:
        arms[item.cell.size].setdefault(item.cell.spec.stream.variant, item.cell.spec)
    sizes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for size, specs in arms.items():
        reads = {variant: _sources(spec.stream, spec.shape) for variant, spec in specs.items()}
        for one, other in combinations(sorted(reads), 2):
            if reads[one] is not None and reads[one] == reads[other]:
                sizes[one, other].append(size)
    for (one, other), where in sizes.items():
        yield f"arms: {one} and {other} are the same model at {', '.join(where)}; leave one out there"


def _sources(stream_spec: StreamSpec, shape: ModelShape) -> tuple[tuple[str, ...], ...] | None:
    """Sources of every read of a stream whose reads are softmax attention over them; None for others."""
    with torch.device("meta"):
        stream = stream_spec.build(shape)
    if not stream.laws.cached_logits:
        return None
    return tuple(stream.sources(site) for site in range(shape.num_sublayers + 1))


def _edges(plan: Sequence[PlannedCell]) -> Iterator[str]:
    """Finished slices whose best cell is at an end: the optimum may lie outside the grid."""
    yield from _edge(
        [item for item in plan if item.cell.role == "rate"],
        key=lambda cell: (cell.spec.stream.variant, cell.size, f"seed {cell.spec.seed}"),
        along=lambda cell: cell.spec.train.lr,
        what="learning rate",
    )
    yield from _edge(
        [item for item in plan if item.cell.role == "ladder"],
        key=lambda cell: (
            cell.spec.stream.variant,
            f"{cell.spec.budget:.2g} FLOPs",
            f"seed {cell.spec.seed}",
        ),
        along=lambda cell: float(cell.params),
        what="size",
    )


def _edge(
    plan: Sequence[PlannedCell],
    *,
    key: Callable[[Cell], tuple[str, ...]],
    along: Callable[[Cell], float],
    what: str,
) -> Iterator[str]:
    slices: dict[tuple[str, ...], dict[float, PlannedCell]] = defaultdict(dict)
    for item in plan:
        slices[key(item.cell)][along(item.cell)] = item
    for name, cells in slices.items():
        finished = all(item.state is CellState.FINISHED for item in cells.values())
        if len(cells) < FEWEST_OF_A_SLICE or not finished:
            continue
        places = sorted(cells)
        best = min(places, key=lambda place: _loss(cells[place]))
        if best in (places[0], places[-1]):
            end = "smallest" if best == places[0] else "largest"
            yield (
                f"optimum: the best {what} of {' '.join(name)} is the {end} of the grid ({best:g}); "
                "add cells beyond it"
            )


def _loss(item: PlannedCell) -> float:
    loss = item.record.val_loss if item.record is not None else None
    return math.inf if loss is None else loss


def _gb(number: float) -> str:
    return f"{number / 1e9:.3g} GB"
