"""The name and options of a residual stream, as plain data that is validated and hashed."""

from typing import Any

from pydantic import Field, model_validator

from attnres.frozen import Frozen
from attnres.shape import ModelShape
from attnres.streams.base import STREAMS, Stream, stream_options


class StreamSpec(Frozen):
    """A stream and its options, defaults filled in, so that equal variants are equal data."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, value: Any) -> Any:
        if isinstance(value, dict) and "name" in value:
            given = value.get("options")
            options = stream_options(value["name"], {} if given is None else given)
            return {**value, "options": options.model_dump(mode="json")}
        return value

    @property
    def variant(self) -> str:
        """Label for people: the name, with the options that differ from their defaults.

        ``additive``, ``block_attnres[num_blocks=4]``.
        """
        options_class = STREAMS.get(self.name).Options
        defaults = {key: field.default for key, field in options_class.model_fields.items()}
        shown = [f"{key}={value}" for key, value in sorted(self.options.items()) if value != defaults[key]]
        return self.name + (f"[{','.join(shown)}]" if shown else "")

    def build(self, shape: ModelShape) -> Stream:
        """The stream module for a model of ``shape``."""
        return STREAMS.get(self.name)(shape, stream_options(self.name, self.options))
