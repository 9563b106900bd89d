"""The base of everything that is validated and hashed: frozen, and it names what it does not know."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Frozen(BaseModel):
    """A frozen model. Unknown fields are refused, with those it knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        unknown = (
            [str(name) for name in value if name not in cls.model_fields] if isinstance(value, dict) else []
        )
        if unknown:
            raise ValueError(
                f"unknown {', '.join(unknown)}; {cls.__name__} knows {', '.join(cls.model_fields)}"
            )
        return value
