"""FineWeb-Edu, the first 10 GB of text of its 10-billion-token sample: for clusters.

Source: HuggingFaceFW/fineweb-edu, config sample-10BT (ODC-By 1.0), pinned by revision. Needs the extra
``fineweb``; streamed once, then offline.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.data.base import DATASETS, Dataset
from experiments.data.hub import HubText, fetch_text, read_text
from experiments.data.overlap import without_overlap
from experiments.data.store import Split, TokenChunks
from experiments.data.text import check_vocabulary, split_of, tokenise

SAMPLE = HubText(
    path="HuggingFaceFW/fineweb-edu",
    config="sample-10BT",
    revision="87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
)


class HubDataset(Dataset):
    """Text of a hub in the stream's own order; whole documents are held out.

    Args:
        name: name of the data set.
        version: raised with any change of its tokens.
        source: what is streamed.
        text_bytes: where the stream is cut, at the end of a document.
        validation_share: documents held out.
    """

    def __init__(
        self, name: str, version: int, source: HubText, *, text_bytes: int, validation_share: float
    ) -> None:
        self.name, self.version, self.source = name, version, source
        self.text_bytes, self.validation_share = text_bytes, validation_share

    def check_vocabulary(self, vocab_size: int) -> None:
        """Bytes (256) or a BPE."""
        check_vocabulary(vocab_size, self.name)

    def token_chunks(self, vocab_size: int, source: Path) -> tuple[TokenChunks, dict[str, Any]]:
        """The documents' tokens; the text is streamed on first use."""
        fetch_text(self.source, source, text_bytes=self.text_bytes, dataset=self.name)
        chunks, about = tokenise(_SplitText(source, self.validation_share), vocab_size)
        pinned = {"path": self.source.path, "config": self.source.config, "revision": self.source.revision}
        return chunks, {**about, "source": pinned}


class _SplitText:
    """The documents with their splits, read anew at every pass: more than memory holds."""

    def __init__(self, folder: Path, validation_share: float) -> None:
        self.folder, self.validation_share = folder, validation_share

    def __iter__(self) -> Iterator[tuple[Split, bytes]]:
        yield from (("train", text) for text in self._read("train"))
        yield from (("val", text) for text in without_overlap(list(self._read("val")), self._read("train")))

    def _read(self, split: Split) -> Iterator[bytes]:
        return (text for text in read_text(self.folder) if split_of(text, self.validation_share) == split)


DATASETS.register("fineweb_edu")(
    HubDataset("fineweb_edu", 1, SAMPLE, text_bytes=10**10, validation_share=0.001)
)
