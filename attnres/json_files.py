"""Small files that a person or a broken disk may have damaged: read into models, or refused by name."""

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from attnres.errors import UserError, one_line

Model = TypeVar("Model", bound=BaseModel)


def read_text(path: Path, advice: str) -> str:
    """Text of ``path`` (UTF-8).

    Raises:
        UserError: it cannot be read or is not text; the message ends with ``advice``.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); {advice}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: damaged (not UTF-8 text); {advice}") from error


def read_model(path: Path, model: type[Model], advice: str) -> Model:
    """The JSON in ``path`` as a ``model``.

    Raises:
        UserError: it cannot be read, is not JSON or not such a model; the message ends with ``advice``.
    """
    text = read_text(path, advice)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{path}: {one_line(error)}; {advice}") from error


def reason(error: OSError) -> str:
    """What the system says: ``No space left on device``."""
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())
