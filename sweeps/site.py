"""The site file: where a cluster's jobs go. Operational like `Settings`: never hashed, changes no result."""

import tomllib
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from attnres.errors import UserError, one_line
from attnres.frozen import Frozen
from attnres.json_files import read_text

SITE_FILE = Path("site.toml")
"""Read where no other is named; without it the defaults hold."""

OURS = frozenset(
    [
        "array",
        "comment",
        "cpus-per-task",
        "dependency",
        "error",
        "export",
        "job-name",
        "ntasks",
        "ntasks-per-node",
        "open-mode",
        "output",
        "requeue",
        "signal",
        "time",
    ]
)
"""Options of sbatch that the launcher sets itself: another value would break what it promises."""


class Site(Frozen):
    """What the jobs of cells ask of Slurm; a cell is one job of an array."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    minutes: int = Field(default=60, ge=1)
    """Time limit of a job. A cell that needs longer is checkpointed, requeued and continued."""
    nodes: int = Field(default=1, ge=1)
    """Nodes of a cell; its processes are shared out evenly."""
    gpus: int = Field(default=0, ge=0)
    """GPUs a node: one a process."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs of a process; by default its threads."""
    memory_gb: float | None = Field(default=None, gt=0)
    signal_seconds: int = Field(default=120, ge=1, le=65535)
    """How long before the time limit a cell is told to write its checkpoint: a step and a write, at least.
    Slurm may tell it up to a minute earlier."""
    array_limit: int = Field(default=1000, ge=1)
    """Most tasks of one array: MaxArraySize of ``scontrol show config``, or what the site's limits leave."""
    side_by_side: int = Field(default=256, ge=1)
    """Tasks of an array that run at once."""
    requeues: int = Field(default=100, ge=0)
    """Most times one job requeues itself: a cell that never ends must not stay for ever."""
    setup: tuple[str, ...] = ()
    """Shell lines before a cell starts: ``module load cuda``."""
    sbatch: dict[str, str | int | bool] = Field(default_factory=dict)
    """Further options of sbatch: ``reservation = "tuesday"``."""

    @model_validator(mode="after")
    def _check(self) -> "Site":
        if self.signal_seconds >= self.minutes * 60:
            raise ValueError(
                f"signal_seconds {self.signal_seconds} is not below the limit of {self.minutes} minutes"
            )
        taken = sorted(OURS & {name.replace("_", "-") for name in self.sbatch})
        if taken:
            raise ValueError(f"sbatch option {', '.join(taken)} is set by the launcher; remove it")
        return self


def read_site(path: Path | None) -> Site:
    """The site in ``path``; without one, in `SITE_FILE` if it is there, else the defaults.

    Raises:
        UserError: the file is not there, is not TOML, or is not a site.
    """
    if path is None and not SITE_FILE.exists():
        return Site()
    path = path or SITE_FILE
    advice = "mend it (docs/cluster.md lists its fields), or name another --site"
    try:
        return Site.model_validate(tomllib.loads(read_text(path, advice)))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UserError(f"{path}: {one_line(error)}; {advice}") from error
