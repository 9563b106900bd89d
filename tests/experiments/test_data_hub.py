"""Text streamed from a hub: once, from where it broke off, cut at a document."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnres.errors import UserError
from experiments.data import hub
from experiments.data.fineweb_edu import SAMPLE, HubDataset
from experiments.data.hub import HubText, fetch_text, read_text
from experiments.data.order import random_bits

DOCUMENTS = [
    f"document {n}: " + " ".join(f"{bits:x}" for bits in random_bits(40, n).tolist()) for n in range(400)
]


class Stream:
    """Stands in for HubText: hands out `DOCUMENTS`, breaks off after some, notes where it was opened."""

    path, config, revision = "made/up", None, "abc"

    def __init__(self, breaks: list[int]) -> None:
        self.breaks, self.opened = breaks, []

    def open(self, skip: int) -> Iterator[str]:
        self.opened.append(skip)
        last = self.breaks.pop(0) if self.breaks else len(DOCUMENTS)
        for number in range(skip, len(DOCUMENTS)):
            if number == last:
                raise RuntimeError("connection\nreset")
            yield DOCUMENTS[number]


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(hub, "FILE_BYTES", 10_000)


def texts(folder: Path) -> list[str]:
    return [text.decode() for text in read_text(folder)]


def test_a_stream_that_breaks_off_goes_on_from_the_last_whole_file(tmp_path):
    stream = Stream([100, 110, 250])
    for _ in range(3):
        with pytest.raises(
            UserError, match=r"made/up broke off after \d+ documents \(connection reset\).*goes on"
        ):
            fetch_text(stream, tmp_path, text_bytes=10**9, dataset="d")
    fetch_text(stream, tmp_path, text_bytes=10**9, dataset="d")
    assert texts(tmp_path) == DOCUMENTS
    assert stream.opened[0] == 0
    for resumed, broke in zip(stream.opened[1:], (100, 110, 250), strict=True):
        assert broke - 20 < resumed <= broke, "at most one file of documents is streamed again"
    assert len(list(tmp_path.glob("documents-*"))) > 20
    fetch_text(stream, tmp_path, text_bytes=10**9, dataset="d")
    assert len(stream.opened) == 4, "complete: no further stream is opened"


@pytest.mark.parametrize("breaks", [[], [3], [50, 60]])
def test_s14_where_the_stream_is_cut_depends_on_its_text_alone(tmp_path, breaks):
    stream = Stream(list(breaks))
    for _ in breaks:
        with pytest.raises(UserError):
            fetch_text(stream, tmp_path, text_bytes=55_555, dataset="d")
    fetch_text(stream, tmp_path, text_bytes=55_555, dataset="d")
    sizes = [len(text) + 1 for text in texts(tmp_path)]
    assert texts(tmp_path) == DOCUMENTS[: len(sizes)]
    assert sum(sizes[:-1]) < 55_555 <= sum(sizes)


def test_w08_half_written_files_and_gaps_are_not_read(tmp_path):
    fetch_text(Stream([]), tmp_path, text_bytes=30_000, dataset="d")
    whole = texts(tmp_path)
    (tmp_path / "complete").unlink()
    (tmp_path / ".documents-000000000099-000000000120.txt.1234.tmp").write_bytes(b"half")
    second = sorted(tmp_path.glob("documents-*"))[1]
    second.unlink()
    fetch_text(Stream([]), tmp_path, text_bytes=30_000, dataset="d")
    assert texts(tmp_path) == whole
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_hub_data_set_is_split_by_content_and_the_same_however_it_was_fetched(tmp_path):
    def made(stream: Stream, root: Path) -> dict:
        dataset = HubDataset("local", 1, stream, text_bytes=100_000, validation_share=0.1)
        for _ in range(len(stream.breaks)):
            with pytest.raises(UserError):
                dataset.load(300, root)
        return dataset.prepare(300, root).manifest

    manifest = made(Stream([]), tmp_path / "once")
    assert made(Stream([70, 90]), tmp_path / "broken") == manifest
    assert manifest["tokeniser"] == "bpe" and manifest["source"]["revision"] == "abc"
    share = manifest["splits"]["val"]["bytes"] / sum(split["bytes"] for split in manifest["splits"].values())
    assert 0.03 < share < 0.2


def test_a_local_data_set_goes_through_the_real_library(tmp_path):
    pytest.importorskip("datasets", reason="needs the extra fineweb")
    lines = [json.dumps({"id": n, "text": text}) for n, text in enumerate(DOCUMENTS)]
    (tmp_path / "made.jsonl").write_text("\n".join(lines))
    source = HubText("json", None, None, options={"data_files": str(tmp_path / "made.jsonl")})
    assert list(source.open(390)) == DOCUMENTS[390:]
    fetch_text(source, tmp_path / "source", text_bytes=10**9, dataset="local")
    assert texts(tmp_path / "source") == DOCUMENTS


def test_without_the_library_the_extra_is_named(monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(hub.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"fineweb-edu: needs the library datasets; run pip install"):
        next(SAMPLE.open(0))
