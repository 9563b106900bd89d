"""Slurm's commands as scripts that write down what they were asked and answer from files."""

import sys
from pathlib import Path

SBATCH = """
number=$(($(ls {folder}/scripts | wc -l) + 1))
cp "$1" {folder}/scripts/$number.sh
echo "Submitted batch job $number"
"""
SQUEUE = """
[ -e {folder}/down ] && echo "Unable to contact slurm controller" >&2 && exit 1
case "$*" in *--jobs=*) cat {folder}/own_state 2>/dev/null;; *) cat {folder}/queue;; esac
"""
NOTED = 'echo "{name} $*" >> {folder}/calls\n'
SRUN = """
while [ "${{1#-}}" != "$1" ]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
"""


class FakeSlurm:
    """Programs in ``folder``/bin; the queue is a file with one ``name|task|id|state|reason`` a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        (folder / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        self.set_queue()
        bodies = {"sbatch": SBATCH, "squeue": SQUEUE, "scontrol": NOTED, "scancel": NOTED, "srun": SRUN}
        for name, body in bodies.items():
            program = self.bin / name
            program.write_text("#!/bin/bash\n" + body.format(folder=folder, name=name))
            program.chmod(0o755)

    @property
    def path(self) -> str:
        """PATH with these programs first, and no other Slurm before the system's tools."""
        return f"{self.bin}:{Path(sys.executable).parent}:/usr/bin:/bin"

    def set_queue(self, *lines: str) -> None:
        (self.folder / "queue").write_text("".join(f"{line}\n" for line in lines))

    def scripts(self) -> list[str]:
        paths = sorted((self.folder / "scripts").iterdir(), key=lambda path: int(path.stem))
        return [path.read_text() for path in paths]

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []
