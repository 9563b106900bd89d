"""Operational settings: how and where a run is executed. Recorded, never hashed."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from attnres.frozen import Frozen


class Branch(Frozen):
    """A run that continues a trunk: which, from which step on, and how long it is in all."""

    spec_id: str = Field(min_length=1)
    step: int = Field(ge=1)
    """The branch point: the last step that the trunk trains for it."""
    steps: int = Field(ge=2)


class Settings(Frozen):
    """Nothing here may change a result beyond floating-point order."""

    runs: Path = Path("runs")
    data: Path = Path("data")
    grid: str = ""
    """Name of the grid that asked for the run: a tag in MLflow."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=1, ge=1)
    """CPU threads of the process."""
    processes: int = Field(default=1, ge=1)
    """Processes that train one cell together, each an equal share of the batch on a device of its own."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How they share its model: with ``ddp`` each holds all of it, with ``fsdp`` a part."""
    micro_sequences: int | None = Field(default=None, ge=1)
    """Sequences of one forward pass; None: the whole share of a process."""
    evaluations: int = Field(default=4, ge=1)
    """Validation points of a run, the last at its end."""
    probes: int = Field(default=16, ge=0)
    """Steps at which the dynamics over depth are recorded, denser at the start; 0: none."""
    checkpoint_seconds: float = Field(default=30.0, ge=0)
    """Least time between two checkpoints."""
    checkpoint_steps: int | None = Field(default=None, ge=1)
    """Checkpoint at every multiple of this step instead."""
    parent: str = ""
    """spec_id of the trunk whose checkpoint the run starts from, if it has none of its own."""
    branches: tuple[Branch, ...] = ()
    """Runs that will start from this one: it leaves them what they need (`experiments.trunk`)."""
    tracking: bool = True
    """Mirror the run to MLflow."""
