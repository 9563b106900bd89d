"""The residual stream: how the sublayers' outputs are carried to the sublayers that follow.

Legend of shape suffixes: B batch, T position, D width.

A stream is functional: its state is a tuple of tensors, never mutated, so that activation
checkpointing and capture may replay any part of it. ``site`` is the index of a sublayer, 0 to
2*depth - 1; reads happen at every site and once more at the output (``finish``).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from jaxtyping import Float
from pydantic import ValidationError
from torch import Tensor, nn

from attnres.errors import UserError, one_line
from attnres.frozen import Frozen
from attnres.norm import RMSNorm
from attnres.registry import Registry
from attnres.shape import ModelShape

State = tuple[Tensor, ...]


class StreamOptions(Frozen):
    """Options of a stream; each stream has its own frozen subclass. Unknown keys are refused."""


@dataclass(frozen=True)
class Laws:
    """Which laws can hold for a stream (docs/method.md); the others concern every stream."""

    zero_query_parity: bool
    """With its extra parameters at their start, logits equal the additive stream's."""
    cached_logits: bool
    """Depth-attention logits depend on a source and a query alone, so they may be cached."""
    equals_additive: bool = False
    """Whatever its parameters, losses and shared gradients equal the additive stream's to the last bit."""


class Mixture(NamedTuple):
    """What a read is made of: ``read = sum_n weights_nBT[n] values[n]``, in the order of `sources`."""

    weights_nBT: Float[Tensor, "n B T"]
    values: tuple[Tensor, ...]
    """Of each source, (B, T, D)."""


class Carrier(Protocol):
    """What the decoder asks of a residual stream; a probe stands in for it (`attnres.probes`)."""

    def start(self, x_BTD: Float[Tensor, "B T D"]) -> State:
        """State after the embedding."""

    def read_normalised(self, state: State, site: int, norm: RMSNorm) -> Float[Tensor, "B T D"]:
        """``norm`` of the read at ``site``."""

    def write(self, state: State, site: int, y_BTD: Float[Tensor, "B T D"]) -> State:
        """State after sublayer ``site`` gave ``y_BTD``."""


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

    def mixture(self, state: State, site: int) -> Mixture | None:  # noqa: ARG002
        """Weights and values of the read at ``site`` (num_sublayers: of `finish`), for a look inside.

        None, the default: every read is the embedding plus every output so far, each with weight 1.
        Never called in an ordinary step, and never with gradients.
        """
        return None

    @abstractmethod
    def flops_per_token(self) -> int:
        """Training FLOPs a token (forward and backward) of the stream's own work.

        The additions of the additive stream count as zero: they are elementwise, as norms are.
        """

    def kept_per_token(self) -> int:
        """fp32 numbers a token that backward keeps beyond those of the additive stream."""
        return 0

    def initialise(self, name: str) -> Tensor | None:  # noqa: ARG002
        """Start value of the stream's parameter ``name``, or None for the general rule of its name."""
        return None


STREAMS: Registry[type[Stream]] = Registry("stream", "attnres.streams")


def stream_options(name: str, options: dict[str, Any]) -> StreamOptions:
    """Validated options of the stream ``name``, defaults filled in.

    Raises:
        UserError: unknown stream, unknown or impossible option.
    """
    if not isinstance(name, str):
        raise UserError(f"stream {name!r}: not a name; known are {', '.join(STREAMS.names())}")
    if not isinstance(options, dict):
        raise UserError(f"stream {name}: options {options!r:.60} are not an object of names and values")
    known = STREAMS.get(name).Options
    unknown = [str(option) for option in options if option not in known.model_fields]
    if unknown:
        names = ", ".join(known.model_fields) or "none"
        raise UserError(f"stream {name}: unknown option {', '.join(unknown)}; it knows {names}")
    try:
        return known.model_validate(options)
    except ValidationError as error:
        raise UserError(f"stream {name}: {one_line(error)}") from error
