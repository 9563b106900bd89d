"""What recording the dynamics costs a run: the extra time of its probed steps over the time of all steps.

Steps with and without a probe take turns on the same model; the file is written once for each checkpoint
interval. The cells are the smallest and the largest of the demo grid.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch

from attnres.initialise import build
from attnres.probes import Probe, Reading
from benchmarks.step import with_random_queries
from benchmarks.timing import Ratio, interleave, ratio, row
from experiments.dynamics import DYNAMICS_FILE, probe_steps, write_dynamics
from experiments.optim import build_optimizer
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.step import optimizer_step
from sweeps.grid import GRIDS

BAR = 1.0
"""Per cent of a run."""


def demo_cells() -> list[RunSpec]:
    """One cell an arm of the demo's smallest and of its largest size."""
    specs = [cell.spec for cell in GRIDS.get("demo")().cells]
    ends = {min(spec.budget for spec in specs), max(spec.budget for spec in specs)}
    first = {(spec.budget, spec.stream.variant): spec for spec in reversed(specs) if spec.budget in ends}
    return list(first.values())


def measured(spec: RunSpec, turns: int) -> Ratio:
    """Cost in per cent of the run: median over turns and quartiles."""
    model = with_random_queries(build(spec.shape, spec.stream, spec.seed))
    optimizer = build_optimizer(model, spec)
    size = (spec.batch_sequences, spec.shape.seq_len + 1)
    tokens = torch.randint(0, spec.shape.vocab_size, size, generator=torch.Generator().manual_seed(0))
    readings: list[Reading] = []

    def plain() -> None:
        optimizer_step(model, optimizer, tokens, spec, lr=1e-6)

    def probed() -> None:
        probe = Probe(model)
        optimizer_step(model, optimizer, tokens, spec, lr=1e-6, watch=probe)
        readings[:] = probe.readings()

    planned = probe_steps(spec.steps, Settings().probes)
    with tempfile.TemporaryDirectory() as folder:

        def written() -> None:
            write_dynamics(Path(folder) / DYNAMICS_FILE, dict.fromkeys(planned, readings))

        times = interleave({"plain": plain, "probed": probed, "written": written}, turns=turns)
    step = ratio(times, "probed", "plain")
    file = ratio(times, "written", "plain")
    files = 1 + spec.steps * step.baseline_seconds / Settings().checkpoint_seconds

    def percent(of_step: float) -> float:
        return 100 * (len(planned) * (of_step - 1) + files * file.value) / spec.steps

    return Ratio(
        percent(step.value),
        percent(step.lo),
        percent(step.hi),
        step.seconds,
        spec.steps * step.baseline_seconds,
    )


def rows(turns: int = 15) -> list[dict[str, Any]]:
    found = []
    for spec in demo_cells():
        one = measured(spec, turns)
        size = f"d{spec.shape.depth}w{spec.shape.width}"
        name = f"dynamics {size} {spec.stream.variant}: % of a run of {one.baseline_seconds:.0f} s"
        found.append(row(name, one, BAR))
    return found
