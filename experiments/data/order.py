"""Orders that depend on a few integers and on nothing else: no generator state, no library version."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def random_bits(count: int, *key: int) -> NDArray[np.uint64]:
    """``count`` pseudo-random 64-bit integers, a pure function of ``key``.

    The generator is SplitMix64 read at positions 0 .. count-1 (Steele, Lea and Flood 2014), started
    from the key's own mix: the same numbers on every machine and with every NumPy.
    """
    start = 0
    for part in key:
        start = int(_mix(np.array([(start + part * _GOLDEN + 1) & _MASK], dtype=np.uint64))[0])
    positions = np.arange(1, count + 1, dtype=np.uint64)
    return _mix(np.uint64(start) + positions * np.uint64(_GOLDEN))


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64-bit integers."""
    with np.errstate(over="ignore"):
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


@lru_cache(maxsize=4)
def permutation(count: int, *key: int) -> NDArray[np.int64]:
    """A permutation of 0 .. count-1 that is a pure function of ``key``; the last four are kept.

    10^6 entries take 0.1 s once, nothing afterwards.
    """
    order = np.argsort(random_bits(count, *key), kind="stable")
    order.flags.writeable = False
    return order
