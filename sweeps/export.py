"""A study as one archive that opens elsewhere: its results and its run directories, without checkpoints."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.errors import UserError
from attnres.files import atomic_path
from attnres.json_files import reason
from experiments.checkpoint import BRANCH_POINTS, CHECKPOINTS
from experiments.run_folder import LOCK_FILE, SETTINGS_FILE
from sweeps.grid import Grid
from sweeps.plan import CellState, PlannedCell

SUMS_FILE = "SHA256SUMS"
LEFT_OUT = (CHECKPOINTS, BRANCH_POINTS, LOCK_FILE, SETTINGS_FILE)
"""Of a run's folder: large and not needed by analysis, or of this machine alone."""
README = """The study "{name}": its plan, tables, fits, figures and report in results/{name}/, and the
directories of its {count} runs (spec, record, metrics, dynamics, log) in runs/.

Whole and unchanged?   sha256sum -c SHA256SUMS
To read it             open results/{name}/report.html (if it is not there: the commands below)
To compute it again, from this folder and with attnres-scaling installed:
  python -m analysis table --study results/{name} --runs runs
  python -m analysis report --study results/{name}
"""


@dataclass(frozen=True)
class Exported:
    """What went into an archive."""

    path: Path
    runs: int
    at_work: tuple[str, ...]
    """Runs left out because a process writes to them."""
    size_bytes: int


def export_study(
    grid: Grid, plan: Sequence[PlannedCell], *, runs: Path, results: Path, target: Path
) -> Exported:
    """Write ``target`` (.tar.gz), whole or not at all; the same bytes from the same files.

    Raises:
        UserError: the study has no results yet, or a file cannot be read or written.
    """
    study = results / grid.name
    if not study.is_dir():
        raise UserError(f"{study}: no such folder; `sweeps run {grid.name}` and the analysis make it")
    at_work = tuple(item.cell.spec.spec_id for item in plan if item.state is CellState.RUNNING)
    chosen = [item.cell.spec.spec_id for item in plan if item.cell.spec.spec_id not in at_work]
    folders = [runs / spec_id for spec_id in chosen if (runs / spec_id).is_dir()]
    files = dict(_files(study, Path("results") / grid.name))
    for folder in folders:
        files |= dict(_files(folder, Path("runs") / folder.name))
    files = {name: path for name, path in files.items() if path.resolve() != target.resolve()}
    try:
        with atomic_path(target) as temporary:
            _write(temporary, grid.name, files, README.format(name=grid.name, count=len(folders)))
        return Exported(target, len(folders), at_work, target.stat().st_size)
    except OSError as error:
        raise UserError(
            f"{error.filename or target}: cannot be read or written ({reason(error)}); make room, or it "
            "readable, or choose another --to"
        ) from error


def _files(folder: Path, name: Path) -> Iterator[tuple[str, Path]]:
    """Name in the archive and place of every file of ``folder`` that belongs into it."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        leftover = path.name.startswith(".") and path.name.endswith(".tmp")
        if path.is_file() and inside.parts[0] not in LEFT_OUT and not leftover:
            yield str(name / inside), path


def _write(target: Path, name: str, files: dict[str, Path], readme: str) -> None:
    sums = []
    with (
        open(target, "wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for inside, path in sorted(files.items()):
            content = path.read_bytes()
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {inside}\n")
            _add(archive, f"{name}/{inside}", content)
        _add(archive, f"{name}/README.txt", readme.encode())
        _add(archive, f"{name}/{SUMS_FILE}", "".join(sums).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Without owner and time: they are of this machine."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))
