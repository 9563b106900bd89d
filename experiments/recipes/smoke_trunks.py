"""The smoke grid's recipe with a trunk: many small steps, for tiny models."""

from experiments.recipes.base import RECIPES
from experiments.recipes.branched import BranchedRecipe

SMOKE_TRUNKS = RECIPES.register("smoke_trunks")(
    BranchedRecipe(
        name="smoke_trunks",
        lr_reference=1e-2,
        params_reference=1e4,
        lr_exponent=0.0,
        batch_tokens=512,
        batch_exponent=0.0,
        warmup_tokens_per_param=0.5,
        cooldown_share=0.1,
        lr_floor=0.05,
        weight_decay=0.1,
        beta1=0.9,
        beta2=0.95,
        grad_clip=1.0,
        precision="fp32",
    )
)
