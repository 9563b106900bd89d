"""Recipes of runs that share a trunk: what happens before the cooldown must not depend on the tokens."""

from dataclasses import dataclass
from typing import Literal

from experiments.recipes.base import power_of_two, three_digits
from experiments.spec import TrainSpec


@dataclass(frozen=True)
class BranchedRecipe:
    """Warm-up, stable, decay: rate, batch and warm-up follow from the baseline's parameters alone.

    All budgets of one size then have the same steps up to their cooldowns, which one trunk trains for them.
    The warm-up is a number of tokens a parameter, so it is a smaller share of a larger budget.
    """

    name: str
    lr_reference: float
    params_reference: float
    lr_exponent: float
    batch_tokens: int
    """Tokens of a step at ``params_reference`` parameters."""
    batch_exponent: float
    """The batch grows as ``params ** batch_exponent``, rounded to a power of two."""
    warmup_tokens_per_param: float
    cooldown_share: float
    """Steps of the cooldown over all steps of the run."""
    lr_floor: float
    weight_decay: float
    beta1: float
    beta2: float
    grad_clip: float
    precision: Literal["fp32", "bf16"]

    def train(self, *, params: float, tokens: float, lr: float | None = None) -> tuple[TrainSpec, int]:
        """See `experiments.recipes.base.Rule.train`."""
        size = params / self.params_reference
        batch_tokens = power_of_two(self.batch_tokens * size**self.batch_exponent)
        warmup = max(1, round(self.warmup_tokens_per_param * params / batch_tokens))
        steps = max(2, round(tokens / batch_tokens))
        spec = TrainSpec(
            recipe=self.name,
            batch_tokens=batch_tokens,
            lr=three_digits(self.lr_reference * size**self.lr_exponent) if lr is None else lr,
            warmup=warmup,
            schedule="wsd",
            cooldown=max(1, round(self.cooldown_share * steps)),
            lr_floor=self.lr_floor,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            grad_clip=self.grad_clip,
            precision=self.precision,
        )
        return spec, steps * batch_tokens
