"""What a model is, apart from its residual stream: a frozen, validated shape."""

from pydantic import Field, model_validator

from attnres.frozen import Frozen


class ModelShape(Frozen):
    """Shape of a decoder-only Transformer; ``depth`` counts Transformer blocks (two sublayers each)."""

    depth: int = Field(ge=1, le=10_000)
    width: int = Field(ge=2, le=2**20)
    num_heads: int = Field(ge=1, le=2**20)
    mlp_width: int = Field(ge=1, le=2**22)
    vocab_size: int = Field(ge=2, le=2**24)
    seq_len: int = Field(ge=2, le=2**24)
    tied: bool = False

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelShape":
        if self.width % self.num_heads:
            raise ValueError(
                f"width {self.width} is not a multiple of num_heads {self.num_heads}: change one of them"
            )
        if self.head_width % 2:
            raise ValueError(
                f"width/num_heads = {self.head_width} is odd: rotary attention needs an even head width"
            )
        return self

    @property
    def head_width(self) -> int:
        """Channels of one attention head."""
        return self.width // self.num_heads

    @property
    def num_sublayers(self) -> int:
        """Attention and MLP sublayers: 2 x depth."""
        return 2 * self.depth
