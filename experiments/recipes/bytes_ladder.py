"""The recipe of the demo: byte models of 50 thousand to a few million parameters."""

from experiments.recipes.base import RECIPES, Recipe

BYTES_LADDER = RECIPES.register("bytes_ladder")(
    Recipe(
        name="bytes_ladder",
        lr_reference=1.21e-2,
        params_reference=1e5,
        lr_exponent=-0.37,
        batch_tokens=1024,
        tokens_reference=1.5e6,
        batch_exponent=0.5,
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
