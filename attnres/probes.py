"""What happens over depth in one step: magnitudes, gradients and mixing weights of any residual stream.

A `Probe` stands in for the stream while the forward and backward passes of a step run. It looks, and
changes nothing: every call goes to the stream as it is, gradients are seen by hooks that return nothing,
no random number is drawn. One definition serves every stream (docs/method.md, "Over depth").

| quantity | at | definition |
|---|---|---|
| hidden | every read | RMS over tokens and channels of the read, before its norm |
| output | every sublayer | RMS of y, the tensor that the sublayer passes to `write` |
| gradient | every sublayer | RMS of dL/dy, L the mean loss of the whole batch |
| parameter_gradient | every Transformer block, at its last sublayer | norm of its parameters' gradient |
| contribution | every source of every read | RMS of a v, a the mixing weight, v the source |
| weight | every source of every read | mean over tokens of a |
| entropy | every read that mixes | mean over tokens of -sum a ln a, nats |
| largest_weight | every read that mixes | mean over tokens of max a |

Reads of a stream without mixing weights (`Stream.mixture` gives None) are the embedding and every output so
far, with weight 1.

Legend: n sources, B batch, T position, D width.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple

import torch
import torch.distributed
from torch import Tensor
from torch.nn.utils import get_total_norm

from attnres.decoder import Decoder
from attnres.kernels.plain import wide
from attnres.norm import RMSNorm
from attnres.sharded import whole
from attnres.streams.base import State, Stream

ROOTED = frozenset({"hidden", "output", "gradient", "parameter_gradient", "contribution"})
"""Quantities whose mean of squares is followed by a root."""
NO_SOURCE = -1
"""Source of a reading that has none."""


class Reading(NamedTuple):
    """One number. ``site``: the sublayer, or 2 depth for the read of the output."""

    site: int
    kind: str
    """``attention``, ``mlp`` or ``output``: whose read or output it is; ``block`` of a whole block."""
    source: int
    """Place of the source in `Stream.sources`, 0 the embedding; `NO_SOURCE` where there is none."""
    quantity: str
    value: float


class IncompleteDynamicsError(RuntimeError):
    """A planned step, a layer or a source was not measured, or not as a number."""


class Probe:
    """Watches ``model`` between entering and leaving: the passes of one step, in any number of micro-batches.

    Leave it after the last backward pass and before gradients are clipped: the parameters' gradients are
    measured then. With several processes (data parallel, gradients averaged, parameters whole or sharded)
    each of them must probe the same steps: `readings` adds their tokens up.
    """

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self._tallies: dict[tuple[str, int], _Tally] = {}
        self._mixes: set[int] = set()

    def __enter__(self) -> "Probe":
        self.model.stand_in = lambda stream: _Watched(stream, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.model.stand_in = None
        if error is None:
            self._measure_parameters()

    def add(self, quantity: str, site: int, totals_n: Tensor, count: int) -> None:
        """Add sums over ``count`` items, one sum a source."""
        known = self._tallies.get((quantity, site))
        if known is None:
            self._tallies[quantity, site] = _Tally(totals_n, count)
        else:
            known.totals_n = known.totals_n + totals_n
            known.count += count

    def add_mixing(self, site: int, weights_nBT: Tensor, squares_nBT: Tensor, width: int) -> None:
        """Add what the weights of a read and the squared norms of its sources say."""
        self._mixes.add(site)
        tokens = weights_nBT[0].numel()
        weights_nX = weights_nBT.flatten(1)
        self.add("weight", site, weights_nX.sum(1), tokens)
        self.add("entropy", site, torch.special.entr(weights_nX).sum().view(1), tokens)
        self.add("largest_weight", site, weights_nX.amax(0).sum().view(1), tokens)
        squares_n = (weights_nX.square() * squares_nBT.flatten(1)).sum(1)
        self.add("contribution", site, squares_n, tokens * width)

    def readings(self) -> list[Reading]:
        """Everything that was measured, in the order of sites.

        Raises:
            IncompleteDynamicsError: a layer or a source is absent or not a finite number; it is named.
        """
        values = self._values()
        found = []
        for site, kind, source, quantity in self._expected():
            row = values.get((quantity, site), [])
            place = max(source, 0)
            value = row[place] if place < len(row) else None
            if value is None or not -float("inf") < value < float("inf"):
                problem = "was not measured" if value is None else f"is {value}"
                of_source = "" if source == NO_SOURCE else f" of source {source}"
                raise IncompleteDynamicsError(f"{quantity}{of_source} at site {site} {problem}")
            found.append(Reading(site, kind, source, quantity, value))
        return found

    def _measure_parameters(self) -> None:
        """Before clipping: norms of the gradients of each Transformer block's parameters."""
        for block in range(self.model.shape.depth):
            pair = self.model.sublayers[2 * block : 2 * block + 2]
            gradients = [parameter.grad for parameter in pair.parameters()]
            if any(gradient is None for gradient in gradients):
                continue  # `readings` names the block
            norm = whole(get_total_norm([gradient for gradient in gradients if gradient is not None]))
            self.add("parameter_gradient", 2 * block + 1, norm.square().view(1), 1)

    def _values(self) -> dict[tuple[str, int], list[float]]:
        """Means over all tokens, roots taken, read from the device at once."""
        if not self._tallies:
            return {}
        sizes = [len(tally.totals_n) for tally in self._tallies.values()]
        totals = torch.cat([tally.totals_n.double() for tally in self._tallies.values()])
        counts = torch.tensor([float(tally.count) for tally in self._tallies.values()], dtype=torch.float64)
        means = totals / counts.to(totals.device).repeat_interleave(torch.tensor(sizes, device=totals.device))
        numbers = iter(_over_processes(means).tolist())
        found = {}
        for (quantity, site), size in zip(self._tallies, sizes, strict=True):
            row = [next(numbers) for _ in range(size)]
            if quantity == "gradient":
                row = [value / _processes() ** 2 for value in row]
            found[quantity, site] = [value**0.5 for value in row] if quantity in ROOTED else row
        if not self._mixes:
            found |= _plain_sums(found, self.model.shape.num_sublayers)
        return found

    def _expected(self) -> Iterator[tuple[int, str, int, str]]:
        """Every (site, kind, source, quantity) that one step has to give."""
        last = self.model.shape.num_sublayers
        for site in range(last + 1):
            kind = "output" if site == last else ("attention", "mlp")[site % 2]
            yield site, kind, NO_SOURCE, "hidden"
            sources = len(self.model.stream.sources(site)) if self._mixes else site + 1
            for quantity in ("weight", "contribution"):
                yield from ((site, kind, source, quantity) for source in range(sources))
            if self._mixes:
                yield site, kind, NO_SOURCE, "entropy"
                yield site, kind, NO_SOURCE, "largest_weight"
            if site < last:
                yield site, kind, NO_SOURCE, "output"
                yield site, kind, NO_SOURCE, "gradient"
            if site % 2 == 1:
                yield site, "block", NO_SOURCE, "parameter_gradient"


class _Tally:
    """Sums over items, one a source."""

    def __init__(self, totals_n: Tensor, count: int) -> None:
        self.totals_n, self.count = totals_n, count


class _Watched:
    """A stream in one forward pass, watched by ``probe``; keeps the squared norms of sources by name."""

    def __init__(self, stream: Stream, probe: Probe) -> None:
        self.stream, self.probe = stream, probe
        self._squares: dict[str, Tensor] = {}

    def start(self, x_BTD: Tensor) -> State:
        """The stream's own; the embedding is a source."""
        with torch.no_grad():
            self._note("embedding", x_BTD)
        return self.stream.start(x_BTD)

    def read_normalised(self, state: State, site: int, norm: RMSNorm) -> Tensor:
        """The stream's own; the read is taken once more, without its norm and without gradients."""
        with torch.no_grad():
            stream = self.stream
            h_BTD = stream.finish(state) if site == stream.shape.num_sublayers else stream.read(state, site)
            self.probe.add("hidden", site, wide(h_BTD).square().sum().view(1), h_BTD.numel())
            mixture = stream.mixture(state, site)
            if mixture is not None:
                names = stream.sources(site)
                squares = [self._note(*pair) for pair in zip(names, mixture.values, strict=True)]
                self.probe.add_mixing(site, mixture.weights_nBT, torch.stack(squares), h_BTD.shape[-1])
        return self.stream.read_normalised(state, site, norm)

    def write(self, state: State, site: int, y_BTD: Tensor) -> State:
        """The stream's own; y is measured, and its gradient when it is known."""
        with torch.no_grad():
            squares_BT = self._note(f"f{site}", y_BTD)
            self.probe.add("output", site, squares_BT.sum().view(1), y_BTD.numel())
        if y_BTD.requires_grad:
            y_BTD.register_hook(partial(self._note_gradient, site))  # type: ignore[no-untyped-call]
        return self.stream.write(state, site, y_BTD)

    def _note(self, name: str, value_BTD: Tensor) -> Tensor:
        """Squared norms (B, T) of the source ``name``."""
        if name not in self._squares:
            self._squares[name] = wide(value_BTD).square().sum(-1)
            if name == "embedding":
                self.probe.add(name, 0, self._squares[name].sum().view(1), value_BTD.numel())
        return self._squares[name]

    @torch.no_grad()
    def _note_gradient(self, site: int, grad_BTD: Tensor) -> None:
        self.probe.add("gradient", site, wide(grad_BTD).square().sum().view(1), grad_BTD.numel())


def _plain_sums(
    found: dict[tuple[str, int], list[float]], num_sublayers: int
) -> dict[tuple[str, int], list[float]]:
    """Weights and contributions of reads that are the embedding and every output so far, with weight 1."""
    sources: Sequence[list[float]] = [
        [value**0.5 for value in found.get(("embedding", 0), [])],
        *(found.get(("output", site), []) for site in range(num_sublayers)),
    ]
    sums = {}
    for site in range(num_sublayers + 1):
        contributions = [value for row in sources[: site + 1] for value in row]
        sums["contribution", site] = contributions
        sums["weight", site] = [1.0] * len(contributions)
    return sums


def _processes() -> int:
    """Data-parallel processes."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _over_processes(means: Tensor) -> Tensor:
    """Mean over the processes, whose batches have equal numbers of tokens; every one of them calls."""
    if _processes() > 1:
        means = means.clone()
        torch.distributed.all_reduce(means)
        means /= _processes()
    return means
