"""How sublayers fall into AttnRes blocks: one rule for every depth, divisible or not."""

from collections.abc import Sequence
from itertools import pairwise

from attnres.errors import UserError


def partition(
    num_sublayers: int,
    *,
    num_blocks: int | None = None,
    block_size: int | None = None,
    boundaries: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Sublayers of each block, in order.

    Exactly one option: ``num_blocks`` gives sizes that differ by at most one, the larger first (7 in 3:
    3, 2, 2), and one sublayer each where there are more blocks than sublayers; ``block_size`` gives equal
    sizes with the last one short (7 by 3: 3, 3, 1); ``boundaries`` are the sites that start a block after
    the first.

    Raises:
        UserError: none or several options, or boundaries that are not increasing inside the model.
    """
    given = [option for option in (num_blocks, block_size, boundaries) if option is not None]
    if len(given) != 1:
        raise UserError(f"give exactly one of num_blocks, block_size and boundaries (got {len(given)})")
    if num_blocks is not None:
        blocks = min(num_blocks, num_sublayers)
        size, larger = divmod(num_sublayers, blocks)
        return (size + 1,) * larger + (size,) * (blocks - larger)
    if block_size is not None:
        whole, rest = divmod(num_sublayers, block_size)
        return (block_size,) * whole + ((rest,) if rest else ())
    assert boundaries is not None
    edges = [0, *boundaries, num_sublayers]
    sizes = tuple(right - left for left, right in pairwise(edges))
    if min(sizes) < 1:
        raise UserError(f"boundaries {list(boundaries)} must increase strictly inside 1..{num_sublayers - 1}")
    return sizes


def block_map(sizes: Sequence[int]) -> str:
    """The partition for people: ``[0 1 2][3 4][5 6]``, sublayers by site."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return "".join(
        f"[{' '.join(str(site) for site in range(start, start + size))}]"
        for start, size in zip(starts, sizes, strict=True)
    )
