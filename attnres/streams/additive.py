"""The baseline: the embedding plus the sum of all outputs so far (PreNorm residual)."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from attnres.streams.base import STREAMS, Laws, State, Stream


@STREAMS.register("additive")
class Additive(Stream):
    """``h_l = h_0 + sum_{i<l} f_i(h_i)``. State: (h,)."""

    laws: ClassVar[Laws] = Laws(zero_query_parity=True, cached_logits=False, equals_additive=True)

    def start(self, x_BTD: Float[Tensor, "B T D"]) -> State:
        """The embedding."""
        return (x_BTD,)

    def read(self, state: State, site: int) -> Float[Tensor, "B T D"]:  # noqa: ARG002
        """The sum so far."""
        return state[0]

    def write(self, state: State, site: int, y_BTD: Float[Tensor, "B T D"]) -> State:  # noqa: ARG002
        """Add the output."""
        return (state[0] + y_BTD,)

    def finish(self, state: State) -> Float[Tensor, "B T D"]:
        """The whole sum."""
        return state[0]

    def sources(self, site: int) -> tuple[str, ...]:
        """One source: the sum itself."""
        return ("+".join(["embedding", *(f"f{member}" for member in range(site))]),)

    def flops_per_token(self) -> int:
        """Additions are elementwise and not counted, in any arm."""
        return 0
