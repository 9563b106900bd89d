"""Block Attention Residuals: reads attend over the sums of blocks of sublayers."""

from typing import Any, ClassVar

from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from attnres.block_partition import block_map, partition
from attnres.depth_attention import DepthAttention
from attnres.norm import RMSNorm
from attnres.shape import ModelShape
from attnres.streams.base import STREAMS, Laws, Mixture, State, Stream, StreamOptions


class BlockOptions(StreamOptions):
    """The partition: exactly one of the three. Sizes count sublayers (attention and MLP separately)."""

    num_blocks: int | None = Field(default=None, ge=1)
    block_size: int | None = Field(default=None, ge=1)
    boundaries: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "BlockOptions":
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(
                "block_attnres takes exactly one of num_blocks, block_size (sublayers) and boundaries; "
                f"given: {', '.join(given) or 'none'}"
            )
        return self


@STREAMS.register("block_attnres")
class BlockAttnRes(Stream):
    """Sources are the embedding, the sums of finished blocks and the running sum (section 3.2)."""

    Options = BlockOptions
    laws: ClassVar[Laws] = Laws(zero_query_parity=True, cached_logits=True)

    def __init__(self, shape: ModelShape, options: StreamOptions) -> None:
        super().__init__(shape, options)
        assert isinstance(options, BlockOptions)
        self.sizes = partition(shape.num_sublayers, **options.model_dump())
        self.depth_attention = DepthAttention(shape.width, shape.num_sublayers, self.sizes)

    @classmethod
    def examples(cls, shape: ModelShape) -> tuple[dict[str, Any], ...]:
        """Every way to give a partition, dividing and not."""
        boundaries = tuple(site for site in (1, 4) if site < shape.num_sublayers)
        return (
            *({"block_size": size} for size in (1, 2, 3, 5, shape.num_sublayers)),
            *({"num_blocks": count} for count in (1, 3, 8)),
            {"boundaries": boundaries},
        )

    def start(self, x_BTD: Float[Tensor, "B T D"]) -> State:
        """The embedding is b_0."""
        return self.depth_attention.start(x_BTD)

    def read(self, state: State, site: int) -> Float[Tensor, "B T D"]:
        """Attention over b_0, the finished blocks and, inside a block, its running sum."""
        return self.depth_attention.read(state, site)

    def read_normalised(self, state: State, site: int, norm: RMSNorm) -> Float[Tensor, "B T D"]:
        """Read and norm in one pass."""
        return self.depth_attention.read_normalised(state, site, norm.gain)

    def write(self, state: State, site: int, y_BTD: Float[Tensor, "B T D"]) -> State:
        """The output begins its block's sum or is added to it."""
        return self.depth_attention.write(state, site, y_BTD)

    def finish(self, state: State) -> Float[Tensor, "B T D"]:
        """The output read, over every block and the embedding."""
        return self.depth_attention.read(state, self.shape.num_sublayers)

    def sources(self, site: int) -> tuple[str, ...]:
        """``embedding``, the blocks' sums, the running sum."""
        return self.depth_attention.sources(site)

    def mixture(self, state: State, site: int) -> Mixture:
        """The softmax weights and the sources."""
        return self.depth_attention.mixture(state, site)

    def block_map(self) -> str:
        """The partition for people: ``[0 1][2 3]``."""
        return block_map(self.sizes)

    def flops_per_token(self) -> int:
        """Training FLOPs of all reads."""
        return self.depth_attention.flops_per_token()

    def kept_per_token(self) -> int:
        """The sources and what their reads need."""
        return self.depth_attention.kept_per_token()

    def initialise(self, name: str) -> Tensor | None:
        """Queries zero, gains one."""
        return self.depth_attention.initialise(name)
