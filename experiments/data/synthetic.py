"""Tokens of a Markov chain whose entropy is known exactly: for tests, made in a second, offline."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.base import DATASETS, Dataset
from experiments.data.order import permutation, random_bits
from experiments.data.store import Split, TokenChunks

CHAIN_TOKENS = 1024
TRAIN_CHAINS = 1024
VAL_CHAINS = 64
SUCCESSOR_WEIGHTS = (0.5, 0.25, 0.125, 0.125)


class Synthetic(Dataset):
    """Chains of 1,024 tokens in which state s goes to ``order[(s + j) % vocab_size]`` with probability p_j.

    The transition matrix is a mixture of permutations, so the stationary distribution is uniform, and
    the successors of a state are distinct, so the entropy rate is the entropy of p.
    """

    name = "synthetic"
    version = 1

    def check_vocabulary(self, vocab_size: int) -> None:
        """Any vocabulary will do."""

    def token_chunks(self, vocab_size: int, source: Path) -> tuple[TokenChunks, dict[str, Any]]:  # noqa: ARG002
        """All training chains, then all validation chains."""
        return self._chunks(vocab_size), {"entropy_nats_per_token": entropy(vocab_size)}

    def _chunks(self, vocab_size: int) -> Iterator[tuple[Split, NDArray[np.int64], int]]:
        for number, (split, chains) in enumerate((("train", TRAIN_CHAINS), ("val", VAL_CHAINS))):
            tokens = sample_chains(vocab_size, chains, seed=number)
            yield split, tokens.reshape(-1), tokens.size  # type: ignore[misc]


def probabilities(vocab_size: int) -> NDArray[np.float64]:
    """Probability of each successor of a state."""
    weights = SUCCESSOR_WEIGHTS[:vocab_size]
    return np.array(weights) / sum(weights)


def entropy(vocab_size: int) -> float:
    """Least loss in nats a token: the chains' entropy, their uniformly drawn first token included."""
    p = probabilities(vocab_size)
    rate = -float(p @ np.log(p))
    return rate + (math.log(vocab_size) - rate) / CHAIN_TOKENS


def sample_chains(vocab_size: int, chains: int, *, seed: int) -> NDArray[np.int64]:
    """Chains from the stationary distribution -> int64 (chains, CHAIN_TOKENS)."""
    order = permutation(vocab_size, 0x5EED)
    bits = random_bits(chains * CHAIN_TOKENS, 0x5EED, seed).reshape(CHAIN_TOKENS, chains)
    uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    jumps = np.searchsorted(np.cumsum(probabilities(vocab_size))[:-1], uniform, side="right")
    tokens = np.empty((CHAIN_TOKENS, chains), dtype=np.int64)
    tokens[0] = (uniform[0] * vocab_size).astype(np.int64)
    for place in range(1, CHAIN_TOKENS):
        tokens[place] = order[(tokens[place - 1] + jumps[place]) % vocab_size]
    return tokens.T


DATASETS.register(Synthetic.name)(Synthetic())
