"""The residual stream: how the sublayers' outputs are carried to the sublayers that follow.

Legend of shape suffixes: B batch, T position, D width.

A stream is functional: its state is a tuple of tensors, never mutated, so that activation
checkpointing and capture may replay any part of it. ``site`` is the index of a sublayer, 0 to
2*depth - 1; reads happen at every site and once more at the output (``finish``).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from attnres.norm import RMSNorm
from attnres.registry import Registry
from attnres.shape import ModelShape

State = tuple[Tensor, ...]


class StreamOptions(BaseModel):
    """Options of a stream; each stream has its own frozen subclass. Unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Laws:
    """Which laws can hold for a stream (docs/method.md); the others concern every stream."""

    zero_query_parity: bool
    """With its extra parameters at their start, logits equal the additive stream's."""
    cached_logits: bool
    """Depth-attention logits depend on a source and a query alone, so they may be cached."""


class Stream(nn.Module, ABC):
    """Abstract residual stream; final subclasses implement everything below.

    Args:
        shape: the model's shape.
        options: an instance of the class's ``Options``.
    """

    Options: ClassVar[type[StreamOptions]] = StreamOptions
    laws: ClassVar[Laws]

    def __init__(self, shape: ModelShape, options: StreamOptions) -> None:
        super().__init__()
        self.shape = shape
        self.options = options

    @classmethod
    def examples(cls, shape: ModelShape) -> tuple[dict[str, Any], ...]:  # noqa: ARG003
        """Options to test the stream with at ``shape``; every law of the method runs on each."""
        return ({},)

    @abstractmethod
    def start(self, x_BTD: Float[Tensor, "B T D"]) -> State:
        """State after the embedding ``x_BTD``."""

    @abstractmethod
    def read(self, state: State, site: int) -> Float[Tensor, "B T D"]:
        """Input of sublayer ``site`` (before its norm)."""

    @abstractmethod
    def write(self, state: State, site: int, y_BTD: Float[Tensor, "B T D"]) -> State:
        """State after sublayer ``site`` gave ``y_BTD``."""

    @abstractmethod
    def finish(self, state: State) -> Float[Tensor, "B T D"]:
        """Input of the final norm and head."""

    def read_normalised(self, state: State, site: int, norm: RMSNorm) -> Float[Tensor, "B T D"]:
        """``norm`` of the read at ``site`` (num_sublayers: of `finish`), which is what a sublayer gets.

        A stream may override it to do both in one pass over memory.
        """
        last = site == self.shape.num_sublayers
        y_BTD: Tensor = norm(self.finish(state) if last else self.read(state, site))
        return y_BTD

    @abstractmethod
    def sources(self, site: int) -> tuple[str, ...]:
        """Names of the tensors that the read at ``site`` attends over, in order.

        ``site == num_sublayers`` is the output read. ``"embedding"``; ``"f3"`` the output of sublayer
        3; ``"f0+f1"`` a finished or running sum of outputs; the additive stream has one source.
        """

    @abstractmethod
    def flops_per_token(self) -> int:
        """Training FLOPs a token (forward and backward) of the stream's own work.

        The additions of the additive stream count as zero: they are elementwise, as norms are.
        """

    def stored_sources(self) -> int:
        """Tensors (batch, position, width) kept for backward beyond the inputs of the norms."""
        return 0

    def initialise(self, name: str) -> Tensor | None:  # noqa: ARG002
        """Start value of the stream's parameter ``name``, or None for the general rule of its name."""
        return None


STREAMS: Registry[type[Stream]] = Registry("stream", "attnres.streams")


def stream_options(name: str, options: dict[str, Any]) -> StreamOptions:
    """Validated options of the stream ``name``, defaults filled in.

    Raises:
        UserError: unknown stream. pydantic.ValidationError: unknown or impossible option.
    """
    return STREAMS.get(name).Options.model_validate(options)
