"""A grid in a person's own file: imported, and whatever is wrong in it told with its line."""

import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from attnres.errors import UserError, one_line

Result = TypeVar("Result")


def execute_file(path: Path) -> None:
    """Import the Python file ``path``, which registers what it registers.

    Raises:
        UserError: no such file, or it cannot be imported.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name a Python file that registers a grid")
    module_spec = importlib.util.spec_from_file_location(f"grid_{path.stem}", path)
    assert module_spec is not None and module_spec.loader is not None
    loader, module = module_spec.loader, importlib.util.module_from_spec(module_spec)
    told_with_line(str(path), lambda: loader.exec_module(module))


def told_with_line(what: str, call: Callable[[], Result]) -> Result:
    """``call()``, where whatever it raises becomes one line that says where in a person's code it was.

    Raises:
        UserError: it raised something; ``what`` begins the message.
    """
    try:
        return call()
    except (Exception, SystemExit) as error:  # a person's code may raise anything
        raise UserError(f"{what}: {_place(error)}{_message(error)}; mend it there") from error


def _place(error: BaseException) -> str:
    """``FILE line N: `` of the last line that is not the project's or a library's own."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{Path(error.filename or '').name} line {error.lineno}: "
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file() and not _is_library(Path(frame.filename))
    ]
    return f"{Path(own[-1].filename).name} line {own[-1].lineno}: " if own else ""


def _is_library(path: Path) -> bool:
    project = Path(__file__).resolve().parents[1]
    packages = [project / name for name in ("attnres", "experiments", "analysis")]
    return (
        "site-packages" in path.parts
        or any(package in path.resolve().parents for package in packages)
        or path.resolve().parent == Path(__file__).resolve().parent
        or path.resolve().is_relative_to(Path(traceback.__file__).resolve().parent)
    )


def _message(error: BaseException) -> str:
    text = one_line(error) if isinstance(error, Exception) else f"ends the program ({error})"
    if isinstance(error, SyntaxError):
        text = error.msg
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"
