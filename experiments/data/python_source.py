"""Python source: the .py files of pinned pure-Python wheels, 128 MB, for the larger budgets.

Of 8,831 files (131 MB, 34 MB to fetch) 8,396 are unique and 7,963 are no near copy of one before.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.data.base import DATASETS, Dataset
from experiments.data.overlap import without_near_copies
from experiments.data.store import Split, TokenChunks
from experiments.data.text import by_content, check_vocabulary, split_by_content, tokenise
from experiments.data.wheels import Wheel, fetch, read_members

PINNED = (
    ("ansible_core", "2.19.14", "d518d0e96fa75bedfe9b0a96d5b158aa712d092961824c115140c8677b88ff06"),
    ("dask", "2026.8.0", "ccc0c83a189b0398602435189771d28dad7b5773b6089bb8dce14ae732dd782c"),
    ("django", "5.2.19", "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00"),
    ("jax", "0.10.2", "724d73c4678d8b06f6a6ab4db1b8a2fea8cd4f1e2c2564f99601634ec7b8d1c6"),
    ("keras", "3.15.1", "836460e480930acbd19bb7a17e62f9ecad40e8a9af9a651fc8d0586a96d27e20"),
    ("mypy", "2.4.1", "1784648d6ec8c2b5465e3f26241b845a0b3cb4e56c993c64abe16989e7698999"),
    ("networkx", "3.6.1", "d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762"),
    ("nltk", "3.10.4", "769ba5413f265b7d3e87cd163cc28efa01e29eeef8bb6080bc907949d9fcfb51"),
    ("pygments", "2.21.0", "2363c69b61c4a97c838da3b130dcd6468f4848992b21a82f2a63ec34377137d9"),
    ("pylint", "4.1.4", "b39fcc762ec4a7fe385d01b8e170fd996847297cdc0e3850bdda1435c74cfd95"),
    ("scapy", "2.8.0", "abf855145ee829a42b2eb28983cd6a0a52b12a31d3f861cb7be36791195ed9aa"),
    ("setuptools", "84.2.1", "ca140b45d5325a9478f880e351484f62fef15f336462e449ca0c03c873d589c2"),
    ("sphinx", "9.0.4", "5bebc595a5e943ea248b99c13814c1c5e10b3ece718976824ffa7959ff95fffb"),
    ("sqlalchemy", "2.1.9", "449fed5c2caa3b278cc57499d09db001fb3f28dc7f18affc48142aee4dcc0cdf"),
    ("sympy", "1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5"),
    ("twisted", "26.10.0", "3732f42af218925a0fe78d6668db55853f7fb532245a89a2669babe7d3000fa8"),
)
"""(project, version, SHA-256 of its ``py3-none-any`` wheel)."""

WHEELS = [
    Wheel(project, version, f"{project}-{version}-py3-none-any.whl", digest)
    for project, version, digest in PINNED
]
VALIDATION_SHARE = 0.05


class PythonSource(Dataset):
    """The files in an order given by their contents, without copies; whole files are held out."""

    name = "python_source"
    version = 1

    def check_vocabulary(self, vocab_size: int) -> None:
        """Bytes (256) or a BPE."""
        check_vocabulary(vocab_size, self.name)

    def token_chunks(self, vocab_size: int, source: Path) -> tuple[TokenChunks, dict[str, Any]]:
        """The files' tokens; the wheels are fetched on first use."""
        fetch(WHEELS, source, dataset=self.name)
        documents = select(
            text for wheel in WHEELS for _, text in read_members(wheel, source, under="", suffix=".py")
        )
        chunks, about = tokenise(documents, vocab_size)
        hashes = {wheel.file: wheel.sha256 for wheel in WHEELS}
        return chunks, {**about, "documents": len(documents), "source_sha256": hashes}


def select(texts: Iterable[bytes]) -> list[tuple[Split, bytes]]:
    """Non-empty UTF-8 texts without exact and near copies, with their splits."""
    return split_by_content(without_near_copies(by_content(filter(is_text, texts))), VALIDATION_SHARE)


def is_text(content: bytes) -> bool:
    """Whether a file is UTF-8, holds no byte 0 and is not blank."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content and bool(content.strip())


DATASETS.register(PythonSource.name)(PythonSource())
