"""Figure 8 of "Attention Residuals" (arXiv 2603.15031v1): learned mixing weights of the 436M models.

Weights averaged over tokens, per Transformer block 1 to 16, before its attention and before its MLP; from the
coordinates in the LaTeX source (a single source). Source 0 is the embedding. Full has one source per sublayer
(2k - 1: attention of block k, 2k: its MLP); Block (8 blocks of 4 sublayers) has one per finished block, and
last the running sum of the current one. For Full only the columns named here were read.
"""

FULL_EMBEDDING_BEFORE_ATTENTION = (
    1.000, 0.291, 0.145, 0.041, 0.087, 0.049, 0.055, 0.022,
    0.058, 0.049, 0.036, 0.021, 0.051, 0.036, 0.032, 0.012,
)  # fmt: skip
FULL_EMBEDDING_BEFORE_MLP = (
    0.507, 0.107, 0.056, 0.058, 0.031, 0.032, 0.028, 0.029,
    0.028, 0.021, 0.021, 0.023, 0.021, 0.020, 0.025, 0.026,
)  # fmt: skip
# Weight of the sublayer just before; in front of attention from block 2 on.
FULL_PREVIOUS_BEFORE_ATTENTION = (
    0.389, 0.266, 0.037, 0.283, 0.274, 0.247, 0.057, 0.181,
    0.107, 0.047, 0.024, 0.082, 0.031, 0.011, 0.001,
)  # fmt: skip
FULL_PREVIOUS_BEFORE_MLP = (
    0.493, 0.704, 0.340, 0.054, 0.796, 0.549, 0.539, 0.043,
    0.384, 0.156, 0.003, 0.040, 0.249, 0.078, 0.078, 0.185,
)  # fmt: skip
# (Transformer block, place, source, weight): the largest weights away from the previous sublayer.
FULL_STRONGEST = (
    (4, "attention", 5, 0.755),
    (15, "attention", 27, 0.417),
    (16, "attention", 27, 0.596),
    (3, "mlp", 3, 0.406),
    (4, "mlp", 3, 0.373),
)

# One row per Transformer block: weights of source 0, 1, ... Before the first
# attention there is only the embedding, so its weight is 1.
BLOCK_BEFORE_ATTENTION: tuple[tuple[float, ...], ...] = (
    (1.000,),
    (0.764, 0.236),
    (0.729, 0.271),
    (0.210, 0.417, 0.373),
    (0.228, 0.070, 0.702),
    (0.118, 0.026, 0.060, 0.796),
    (0.204, 0.027, 0.122, 0.647),
    (0.130, 0.061, 0.052, 0.382, 0.376),
    (0.151, 0.018, 0.079, 0.222, 0.530),
    (0.089, 0.011, 0.041, 0.077, 0.108, 0.674),
    (0.152, 0.116, 0.071, 0.122, 0.132, 0.407),
    (0.110, 0.174, 0.028, 0.204, 0.059, 0.316, 0.109),
    (0.093, 0.046, 0.158, 0.137, 0.114, 0.388, 0.066),
    (0.098, 0.147, 0.087, 0.082, 0.079, 0.258, 0.040, 0.209),
    (0.088, 0.075, 0.056, 0.054, 0.051, 0.158, 0.299, 0.219),
    (0.113, 0.217, 0.021, 0.213, 0.028, 0.289, 0.058, 0.029, 0.032),
)  # fmt: skip
BLOCK_BEFORE_MLP: tuple[tuple[float, ...], ...] = (
    (0.510, 0.490),
    (0.912, 0.088),
    (0.448, 0.086, 0.465),
    (0.557, 0.147, 0.296),
    (0.080, 0.020, 0.035, 0.866),
    (0.132, 0.062, 0.088, 0.718),
    (0.100, 0.029, 0.038, 0.102, 0.731),
    (0.107, 0.077, 0.061, 0.147, 0.607),
    (0.056, 0.013, 0.013, 0.024, 0.061, 0.832),
    (0.086, 0.052, 0.043, 0.036, 0.147, 0.637),
    (0.075, 0.053, 0.023, 0.019, 0.100, 0.254, 0.476),
    (0.060, 0.134, 0.033, 0.028, 0.093, 0.224, 0.427),
    (0.059, 0.130, 0.021, 0.026, 0.064, 0.131, 0.129, 0.439),
    (0.105, 0.081, 0.015, 0.017, 0.056, 0.152, 0.281, 0.293),
    (0.085, 0.057, 0.014, 0.012, 0.033, 0.088, 0.268, 0.233, 0.211),
    (0.093, 0.068, 0.018, 0.014, 0.033, 0.082, 0.240, 0.234, 0.218),
)  # fmt: skip
