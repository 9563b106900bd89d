"""What others measured at small scale with Attention Residuals against their own baseline.

Numbers from the repositories, pull requests and issues named in ``source``; most with one seed, none of them
verified here. A row is one model size. Loss in nats a token unless ``metric`` says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Metric = Literal["loss", "train_loss", "perplexity", "bits_per_byte"]

BLOCK, FULL, MHC = "block_attnres", "full_attnres", "mhc"
# Some form of Attention Residuals; which is not stated.
UNSPECIFIED = "attn_residuals"


@dataclass(frozen=True)
class Replication:
    """One size of one replication.

    Fields:
        params, tokens: as their authors label them; None where not stated. data: training data.
        arms: variant -> value. seeds: runs averaged per arm. caveat: why to read it with care, if anything is
        known against it.
    """

    source: str
    setting: str
    data: str
    params: float | None
    tokens: float | None
    metric: Metric
    baseline: float
    arms: Mapping[str, float]
    seeds: int = 1
    caveat: str = ""


def _row(
    source: str,
    setting: str,
    data: str,
    params: float | None,
    tokens: float | None,
    baseline: float,
    arms: Mapping[str, float],
    *,
    metric: Metric = "loss",
    seeds: int = 1,
    caveat: str = "",
) -> Replication:
    frozen = MappingProxyType(dict(arms))
    return Replication(source, setting, data, params, tokens, metric, baseline, frozen, seeds, caveat)


def _ilml() -> tuple[Replication, ...]:
    sizes = (194e6, 241e6, 296e6, 436e6, 528e6)
    tokens = (38.7e9, 45.4e9, 62.1e9, 87.9e9, 119.0e9)
    baseline = (1.827, 1.744, 1.669, 1.600, 1.549)
    block = (1.791, 1.726, 1.656, 1.582, 1.520)
    full = (1.809, 1.737, 1.676, 1.616, 1.547)
    return tuple(
        _row(
            "ilml/Attention-Residuals README @ b290fcc",
            "dense, Table 2 shapes, context 8192, AdamW, 8 blocks",
            "Nemotron, GPT-2 BPE",
            n,
            d,
            b,
            {BLOCK: k, FULL: f},
            caveat="single source; whether data repeat is unclear",
        )
        for n, d, b, k, f in zip(sizes, tokens, baseline, block, full, strict=True)
    )


def _ilml_early() -> tuple[Replication, ...]:
    baseline = (4.428, 3.478, 3.128, 4.776, 5.547)
    block = (3.980, 3.323, 3.375, 4.617, 4.925)
    return tuple(
        _row(
            "ilml/Attention-Residuals earlier README",
            "dense, 124M to 401M, 100 to 400 steps",
            "Nemotron",
            None,
            38.7e6,
            b,
            {BLOCK: k},
            caveat="far too short",
        )
        for b, k in zip(baseline, block, strict=True)
    )


def _mhar() -> tuple[Replication, ...]:
    source, data = "MHAR table (tail mean, lr 1e-3)", "FineWeb-Edu"
    width = "MHAR width control (lr 5e-4)"
    return (
        _row(source, "dense, d512 L12, 20k steps", data, 100e6, 2.6e9, 3.336, {FULL: 3.297}),
        _row(source, "dense, d1024 L24, 20k steps", data, 350e6, 0.66e9, 3.290, {FULL: 3.345}),
        _row(source, "dense, d1280 L36, 20k steps", data, 1e9, 0.66e9, 3.175, {FULL: 3.315}),
        _row(width, "dense, d512 L12", data, None, None, 3.462, {FULL: 3.421}),
        _row(width, "dense, d768 L12", data, None, None, 3.220, {FULL: 3.187}),
    )


def _single_pairs() -> tuple[Replication, ...]:
    return (
        _row(
            "pytorch/torchtitan RFC (QIU023)",
            "Llama-3 style, 12 layers, 6 blocks, 20k steps",
            "C4",
            75e6,
            None,
            3.685,
            {BLOCK: 3.619},
            caveat="one GPU, 30 % slower",
        ),
        _row(
            "Kimi-Linear port (QIU023)",
            "436M Table 2 shape, 32 experts, 8 blocks, AdamW",
            "C4",
            436e6,
            307e6,
            3.7190,
            {BLOCK: 3.7326},
            caveat="heavily under-trained",
        ),
        _row(
            "tokenbender/nanogpt-attnres-repro",
            "48 layers, d150, context 1024",
            "FineWeb",
            20.7e6,
            1.05e9,
            4.2451,
            {FULL: 4.1615, BLOCK: 4.1059, MHC: 4.0837},
        ),
        _row(
            "wdlctc/open-attention-residuals",
            "0.6B, 20k steps",
            "",
            0.6e9,
            None,
            3.303,
            {FULL: 3.350},
            metric="train_loss",
            caveat="not faithful: recency bias, cumulative sources",
        ),
        _row(
            "karpathy/nanochat#646",
            "d12, 500 steps, gated add-on",
            "",
            None,
            None,
            1.7145,
            {"gated_attnres": 1.7011},
            caveat="a reviewer could not reproduce a gain",
        ),
        _row(
            "karpathy/nanochat#648",
            "depth 4, 20 steps",
            "",
            None,
            None,
            2.80,
            {UNSPECIFIED: 2.61},
            metric="bits_per_byte",
            caveat="meaningless length",
        ),
    )


def _perplexities() -> tuple[Replication, ...]:
    kimi_like = "AtinChing/AttnResGPT-next-scale"
    chinese = "gouzigouzi/attention-residuals-reproduction"
    delta = "Delta AttnRes repository"
    cumulative = "their AttnRes sums sources cumulatively"
    return (
        *(
            _row(
                kimi_like,
                f"6 layers, seed {seed}",
                "",
                30e6,
                150e6,
                baseline,
                {BLOCK: block, FULL: full},
                metric="perplexity",
            )
            for seed, baseline, block, full in (
                (1, 122.19, 105.05, 103.86),
                (2, 120.98, 104.23, 101.65),
                (3, 118.54, 100.93, 95.47),
            )
        ),
        _row(
            chinese,
            "d512 L12, 20k steps",
            "Chinese FineWeb-Edu",
            100e6,
            0.66e9,
            128.58,
            {FULL: 104.51, BLOCK: 105.09},
            metric="perplexity",
        ),
        _row(
            chinese,
            "d1024 L28",
            "Chinese FineWeb-Edu",
            0.6e9,
            None,
            41.83,
            {BLOCK: 38.80},
            metric="perplexity",
        ),
        *(
            _row(
                delta,
                "10k steps",
                "FineWeb-Edu",
                params,
                None,
                baseline,
                {UNSPECIFIED: value},
                metric="perplexity",
                caveat=cumulative,
            )
            for params, baseline, value in (
                (220e6, 38.71, 37.39),
                (533e6, 32.00, 31.75),
                (1044e6, 29.70, 31.76),
                (7.6e9, 17.43, 18.58),
            )
        ),
    )


def _marin() -> tuple[Replication, ...]:
    source = "marin-community/marin#9290"
    return (
        _row(
            source,
            "MoE d512, fixed data",
            "Paloma macro",
            None,
            None,
            3.1559,
            {UNSPECIFIED: 3.1470, MHC: 3.1485},
        ),
        _row(
            source,
            "MoE d768, fixed data",
            "Paloma macro",
            None,
            None,
            2.8723,
            {UNSPECIFIED: 2.8508, MHC: 2.8675},
        ),
    )


REPLICATIONS: tuple[Replication, ...] = (
    *_ilml(),
    *_ilml_early(),
    *_mhar(),
    *_single_pairs(),
    *_perplexities(),
    *_marin(),
)


@dataclass(frozen=True)
class SeededDifference:
    """Variant minus baseline, nats a token, mean and standard deviation over seeds."""

    source: str
    setting: str
    mean: float
    sd: float
    seeds: int


SEEDED_DIFFERENCES: tuple[SeededDifference, ...] = (
    SeededDifference("MHAR (lr 5e-4)", "100M, Full single head", -0.043, 0.003, 3),
    SeededDifference("MHAR (lr 5e-4)", "350M, Full single head", -0.005, 0.015, 3),
    SeededDifference("MHAR (lr 5e-4)", "1B, Full single head", 0.093, 0.049, 3),
)

# Losses without a baseline (kimmichtank, dense MLA, AdamW): size -> loss per arm; 4.02B: first fifth of a
# 100B-token schedule.
WITHOUT_BASELINE: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "57M": MappingProxyType({FULL: 3.63247, BLOCK: 3.66535, "rms_block": 3.65084}),
        "157M": MappingProxyType({FULL: 3.08283, BLOCK: 3.08348, "rms_block": 3.07799}),
        "512M": MappingProxyType({FULL: 2.71660, BLOCK: 2.73308, "rms_block": 2.72306}),
        "4.02B": MappingProxyType({FULL: 2.95484, BLOCK: 2.97866, "rms_block": 2.93221}),
    }
)

# Compute speed-ups stated by Marin #9290 for AttnRes (d512, d768): at equal compute, and at equal wall time.
# Its formula: ((L_base - 1.2) / (L - 1.2))^(1 / 0.0842).
MARIN_SPEED_UP = (1.06, 1.17)
MARIN_SPEED_UP_THROUGHPUT_ADJUSTED = (1.01, 1.19)
MARIN_ASYMPTOTE, MARIN_EXPONENT = 1.2, 0.0842
