"""Name -> object tables that fill themselves: one file, one registration, no central list."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from attnres.errors import UserError

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of one kind by name, registered by a decorator in their own module.

    Args:
        kind: what is registered, for messages ("stream", "grid").
        package: dotted name of the package whose modules hold the registrations. It is imported
            module by module on the first look-up, so that adding a file is all it takes.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: file ``entry`` under ``name``; a second entry of that name is refused."""

        def add(entry: T) -> T:
            known = self._entries.get(name)
            if known is not None and known is not entry:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T:
        """The entry called ``name``.

        Raises:
            UserError: no such entry; the message lists the known names.
        """
        self._discover()
        if name not in self._entries:
            raise UserError(f"unknown {self.kind} '{name}': known are {', '.join(self.names())}")
        return self._entries[name]

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._discover()
        return sorted(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _discover(self) -> None:
        if self._discovered:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__, f"{self.package}."):
            importlib.import_module(module.name)
        self._discovered = True
