"""Full Attention Residuals: every read attends over the embedding and every sublayer output so far."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from attnres.depth_attention import DepthAttention
from attnres.norm import RMSNorm
from attnres.shape import ModelShape
from attnres.streams.base import STREAMS, Laws, Mixture, State, Stream, StreamOptions


@STREAMS.register("full_attnres")
class FullAttnRes(Stream):
    """``h_l = sum_{i<l} softmax_i(w_l . RMSNorm(v_i)) v_i`` (arXiv 2603.15031, section 3)."""

    laws: ClassVar[Laws] = Laws(zero_query_parity=True, cached_logits=True)

    def __init__(self, shape: ModelShape, options: StreamOptions) -> None:
        super().__init__(shape, options)
        self.depth_attention = DepthAttention(shape.width, shape.num_sublayers, (1,) * shape.num_sublayers)

    def start(self, x_BTD: Float[Tensor, "B T D"]) -> State:
        """The embedding is source 0."""
        return self.depth_attention.start(x_BTD)

    def read(self, state: State, site: int) -> Float[Tensor, "B T D"]:
        """Attention over the embedding and all outputs before ``site``."""
        return self.depth_attention.read(state, site)

    def read_normalised(self, state: State, site: int, norm: RMSNorm) -> Float[Tensor, "B T D"]:
        """Read and norm in one pass."""
        return self.depth_attention.read_normalised(state, site, norm.gain)

    def write(self, state: State, site: int, y_BTD: Float[Tensor, "B T D"]) -> State:
        """The output becomes a source."""
        return self.depth_attention.write(state, site, y_BTD)

    def finish(self, state: State) -> Float[Tensor, "B T D"]:
        """The output read, with a query of its own."""
        return self.depth_attention.read(state, self.shape.num_sublayers)

    def sources(self, site: int) -> tuple[str, ...]:
        """``embedding, f0, .., f(site-1)``."""
        return self.depth_attention.sources(site)

    def mixture(self, state: State, site: int) -> Mixture:
        """The softmax weights and the sources."""
        return self.depth_attention.mixture(state, site)

    def flops_per_token(self) -> int:
        """Training FLOPs of all reads."""
        return self.depth_attention.flops_per_token()

    def kept_per_token(self) -> int:
        """The sources and what their reads need."""
        return self.depth_attention.kept_per_token()

    def initialise(self, name: str) -> Tensor | None:
        """Queries zero, gains one."""
        return self.depth_attention.initialise(name)
