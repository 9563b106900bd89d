"""A control: the baseline's sum at the price of depth attention, whose result is thrown away."""

from typing import Any, ClassVar

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from attnres.block_partition import partition
from attnres.depth_attention import DepthAttention
from attnres.norm import RMSNorm
from attnres.shape import ModelShape
from attnres.streams.base import STREAMS, Laws, State, Stream, StreamOptions


class OverheadOptions(StreamOptions):
    """Whose price is paid: Block AttnRes of ``num_blocks`` blocks, Full AttnRes by default."""

    num_blocks: int | None = Field(default=None, ge=1)


@STREAMS.register("overhead_only")
class OverheadOnly(Stream):
    """``h_l = h_0 + sum_{i<l} f_i(h_i) + 0 x mix``: additive to the last bit, forward and backward.

    The mix is computed, and its backward pass runs with a gradient of zero, so that its queries never move.
    Against the additive stream the compute multiplier is C_b / C_v on exact FLOPs and 1 at equal tokens:
    what an analysis must find. State: the sum, then depth attention's.
    """

    Options = OverheadOptions
    laws: ClassVar[Laws] = Laws(zero_query_parity=True, cached_logits=False, equals_additive=True)

    def __init__(self, shape: ModelShape, options: StreamOptions) -> None:
        super().__init__(shape, options)
        assert isinstance(options, OverheadOptions)
        blocks = shape.num_sublayers if options.num_blocks is None else options.num_blocks
        sizes = partition(shape.num_sublayers, num_blocks=blocks)
        self.depth_attention = DepthAttention(shape.width, shape.num_sublayers, sizes)

    @classmethod
    def examples(cls, shape: ModelShape) -> tuple[dict[str, Any], ...]:  # noqa: ARG003
        """The price of blocks and of Full AttnRes."""
        return ({"num_blocks": 2}, {})

    def start(self, x_BTD: Float[Tensor, "B T D"]) -> State:
        """The embedding, as the sum and as the first source."""
        return (x_BTD, *self.depth_attention.start(x_BTD))

    def read(self, state: State, site: int) -> Float[Tensor, "B T D"]:
        """The sum so far; the mix counts nothing."""
        return state[0] + 0 * self.depth_attention.read(state[1:], site)

    def read_normalised(self, state: State, site: int, norm: RMSNorm) -> Float[Tensor, "B T D"]:
        """The normalised sum; the mix is read and normalised in one pass, as the arms that use it do."""
        normalised_BTD: Tensor = norm(state[0])
        return normalised_BTD + 0 * self.depth_attention.read_normalised(state[1:], site, norm.gain)

    def write(self, state: State, site: int, y_BTD: Float[Tensor, "B T D"]) -> State:
        """Add the output to the sum, and give it to depth attention."""
        return (state[0] + y_BTD, *self.depth_attention.write(state[1:], site, y_BTD))

    def finish(self, state: State) -> Float[Tensor, "B T D"]:
        """The whole sum."""
        return self.read(state, self.shape.num_sublayers)

    def sources(self, site: int) -> tuple[str, ...]:
        """One source: the sum itself."""
        return ("+".join(["embedding", *(f"f{member}" for member in range(site))]),)

    def flops_per_token(self) -> int:
        """Training FLOPs of the reads whose result is thrown away."""
        return self.depth_attention.flops_per_token()

    def kept_per_token(self) -> int:
        """What depth attention keeps, and input and inverse RMS of its reads' norms; the embedding once."""
        norms = (self.shape.num_sublayers + 1) * (self.shape.width + 1)
        return self.depth_attention.kept_per_token() + norms - self.shape.width

    def initialise(self, name: str) -> Tensor | None:
        """Queries zero, gains one."""
        return self.depth_attention.initialise(name)
