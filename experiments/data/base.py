"""What a data set is: a name that turns into one fixed stream of tokens."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from filelock import FileLock

from attnres.errors import UserError
from attnres.json_files import reason
from attnres.registry import Registry
from experiments.data.store import (
    MANIFEST_FILE,
    TokenChunks,
    damaged,
    open_tokens,
    verify_tokens,
    write_tokens,
)
from experiments.data.tokens import TokenData, TokenStream

__all__ = ["DATASETS", "Dataset", "TokenData", "TokenStream"]

LARGEST_VOCABULARY = 2**16


class Dataset(ABC):
    """A text or a process, as tokens: the same on every machine and at every time.

    A subclass sets ``name`` and ``version`` (raised whenever its tokens change) and yields tokens;
    folders, locks, hashes and memory maps are done here. Tokens of one vocabulary lie in
    ``<root>/<name>-v<version>/<vocab_size>/``, whatever was fetched in ``<root>/<name>-v<version>/source/``.
    """

    name: str
    version: int

    @abstractmethod
    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse (``UserError``) a vocabulary this data set cannot have."""

    @abstractmethod
    def token_chunks(self, vocab_size: int, source: Path) -> tuple[TokenChunks, dict[str, Any]]:
        """The tokens in order, and what the manifest should say of them.

        Args:
            vocab_size: every token is smaller.
            source: folder for fetched files, which are kept so that later vocabularies need no network.
        """

    def load(self, vocab_size: int, root: Path) -> TokenData:
        """The tokens, memory-mapped; made first if they are not there yet.

        Any number of processes may call this at once on an empty folder: one makes, the rest wait.

        Args:
            vocab_size: size of the vocabulary; 256 is bytes where the data set is text.
            root: folder of all data sets.

        Raises:
            UserError: no such vocabulary, nothing can be fetched or written, or a shard is damaged.
        """
        folder = self._folder(vocab_size, root)
        if not (folder / MANIFEST_FILE).exists():
            self._make(vocab_size, folder)
        data = open_tokens(folder)
        if (data.name, data.vocab_size) != (self.name, vocab_size):
            raise damaged(
                folder / MANIFEST_FILE, f"it is that of {data.name} with vocab_size {data.vocab_size}"
            )
        return data

    def find(self, vocab_size: int, root: Path) -> TokenData | None:
        """The tokens if they are on disk already; nothing is made or fetched."""
        here = (self._folder(vocab_size, root) / MANIFEST_FILE).exists()
        return self.load(vocab_size, root) if here else None

    def prepare(self, vocab_size: int, root: Path) -> TokenData:
        """`load`, and compare every byte with the manifest: before tokens are trained on."""
        data = self.load(vocab_size, root)
        verify_tokens(self._folder(vocab_size, root))
        return data

    def check_size(self, vocab_size: int) -> None:
        """Refuse (``UserError``) a vocabulary that tokens on disk or this data set cannot have."""
        if not 2 <= vocab_size <= LARGEST_VOCABULARY:
            raise UserError(
                f"vocab_size {vocab_size}: data set {self.name} has tokens of 2 to {LARGEST_VOCABULARY} kinds"
            )
        self.check_vocabulary(vocab_size)

    def _folder(self, vocab_size: int, root: Path) -> Path:
        self.check_size(vocab_size)
        return root / f"{self.name}-v{self.version}" / str(vocab_size)

    def _make(self, vocab_size: int, folder: Path) -> None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.parent / "lock"):
                if (folder / MANIFEST_FILE).exists():
                    return
                if folder.exists():
                    raise damaged(folder / MANIFEST_FILE, "missing")
                chunks, about = self.token_chunks(vocab_size, folder.parent / "source")
                about = {"name": self.name, "version": self.version, **about}
                write_tokens(folder, chunks, about=about, vocab_size=vocab_size)
        except OSError as error:
            raise UserError(
                f"{folder}: data set {self.name} cannot be written there ({reason(error)}); "
                "make room or the folder writable, or choose another data folder"
            ) from error


DATASETS: Registry[Dataset] = Registry("data set", "experiments.data")
