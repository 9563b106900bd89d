"""Whole or absent files, on disks that refuse."""

import errno
import os
from pathlib import Path

import pytest

from attnres.files import write_text


def test_a_read_only_disk_names_the_file_and_not_its_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="Read-only") as refused:
        write_text(tmp_path / "runs.csv", "text")
    assert refused.value.filename == str(tmp_path / "runs.csv")
