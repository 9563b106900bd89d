"""A recipe turns a model's size and its token budget into the resolved numbers of a `TrainSpec`."""

from dataclasses import dataclass
from typing import Literal, Protocol

from attnres.registry import Registry
from experiments.spec import TrainSpec


class Rule(Protocol):
    """What every recipe can do."""

    @property
    def name(self) -> str:
        """As it is registered."""

    def train(self, *, params: float, tokens: float, lr: float | None = None) -> tuple[TrainSpec, int]:
        """Resolved numbers and the exact token count: a whole number of batches, at least two.

        Args:
            params: parameters of the baseline arm.
            tokens: wished-for training tokens.
            lr: a learning rate in place of the rule's (rate sweeps).
        """


@dataclass(frozen=True)
class Recipe:
    """Every default, explicit and named, so that whoever uses it chooses it.

    The learning rate is a power law of the baseline's parameters,
    ``lr = lr_reference * (params / params_reference) ** lr_exponent``: all arms of a pair get the
    baseline's rate (the matched comparison).
    """

    name: str
    lr_reference: float
    params_reference: float
    lr_exponent: float
    batch_tokens: int
    """Tokens of a step at ``tokens_reference`` training tokens."""
    tokens_reference: float
    batch_exponent: float
    """The batch grows as ``tokens ** batch_exponent``, rounded to a power of two."""
    warmup_share: float
    schedule: Literal["cosine", "linear", "constant"]
    lr_floor: float
    weight_decay: float
    beta1: float
    beta2: float
    grad_clip: float
    precision: Literal["fp32", "bf16"]

    def lr(self, params: float) -> float:
        """Peak learning rate for a baseline of ``params`` parameters, to three digits."""
        return three_digits(self.lr_reference * (params / self.params_reference) ** self.lr_exponent)

    def batch(self, tokens: float) -> int:
        """Tokens of one step for a budget of ``tokens``: the nearest power of two in ratio."""
        return power_of_two(self.batch_tokens * (tokens / self.tokens_reference) ** self.batch_exponent)

    def train(self, *, params: float, tokens: float, lr: float | None = None) -> tuple[TrainSpec, int]:
        """See `Rule.train`."""
        batch_tokens = self.batch(tokens)
        steps = max(2, round(tokens / batch_tokens))
        spec = TrainSpec(
            recipe=self.name,
            batch_tokens=batch_tokens,
            lr=self.lr(params) if lr is None else lr,
            warmup=min(max(1, round(self.warmup_share * steps)), steps - 1),
            schedule=self.schedule,
            lr_floor=self.lr_floor,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            grad_clip=self.grad_clip,
            precision=self.precision,
        )
        return spec, steps * batch_tokens


def three_digits(value: float) -> float:
    """A rate that a person can type."""
    return float(f"{value:.3g}")


def power_of_two(wanted: float) -> int:
    """The power of two nearest in ratio to ``wanted``, at least 1."""
    power = max(int(wanted).bit_length() - 1, 0)
    return 1 << (power + int(wanted > 2 ** (power + 0.5)))


RECIPES: Registry[Rule] = Registry("recipe", "experiments.recipes")
