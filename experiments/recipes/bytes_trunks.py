"""The demo's byte models with a trunk: `bytes_ladder`'s rate, decay and batch at 20 tokens a parameter.

At its smallest budget (5 tokens a parameter) the warm-up is a tenth of the run, as `bytes_ladder`'s is.
"""

from experiments.recipes.base import RECIPES
from experiments.recipes.branched import BranchedRecipe

BYTES_TRUNKS = RECIPES.register("bytes_trunks")(
    BranchedRecipe(
        name="bytes_trunks",
        lr_reference=1.21e-2,
        params_reference=1e5,
        lr_exponent=-0.37,
        batch_tokens=1024,
        batch_exponent=0.5,
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
