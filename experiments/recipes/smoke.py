"""The recipe of the smoke grid: many small steps, so that a tiny model learns something in seconds."""

from experiments.recipes.base import RECIPES, Recipe

SMOKE = RECIPES.register("smoke")(
    Recipe(
        name="smoke",
        lr_reference=1e-2,
        params_reference=1e4,
        lr_exponent=0.0,
        batch_tokens=512,
        tokens_reference=1e5,
        batch_exponent=0.0,
        warmup_share=0.1,
        schedule="cosine",
        lr_floor=0.05,
        weight_decay=0.1,
        beta1=0.9,
        beta2=0.95,
        grad_clip=1.0,
        precision="fp32",
    )
)
