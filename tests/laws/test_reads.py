"""Law 4 on whole streams, and what a read may and may not depend on."""

import torch
from torch import Tensor

from attnres.initialise import build
from attnres.mixing import reference_mix
from attnres.norm import RMSNorm
from attnres.stream_spec import StreamSpec
from attnres.streams.base import STREAMS, Stream
from tests.laws.subjects import EVERY_STREAM, batch, make, small_shape

Parts = dict[str, Tensor]


def parts_of(stream: Stream) -> Parts:
    """The embedding and every sublayer's output, of growing size, as leaves."""
    generator = torch.Generator().manual_seed(3)
    names = ["embedding", *(f"f{site}" for site in range(stream.shape.num_sublayers))]
    size = (2, 3, stream.shape.width)
    return {
        name: (torch.randn(size, generator=generator, dtype=torch.float64) * (1 + index)).requires_grad_()
        for index, name in enumerate(names)
    }


def own_reads(stream: Stream, parts: Parts) -> list[Tensor]:
    """What the stream reads at every site and at the output."""
    state, reads = stream.start(parts["embedding"]), []
    for site in range(stream.shape.num_sublayers):
        reads.append(stream.read(state, site))
        state = stream.write(state, site, parts[f"f{site}"])
    return [*reads, stream.finish(state)]


def written_reads(stream: Stream, parts: Parts) -> list[Tensor]:
    """The same from the names of the sources and the definition of the read."""
    parameters = {name.rpartition(".")[2]: value for name, value in stream.named_parameters()}
    attends = STREAMS.get(stream_name(stream)).laws.cached_logits
    reads = []
    for site in range(stream.shape.num_sublayers + 1):
        sources = [
            torch.stack([parts[part] for part in name.split("+")]).sum(0) for name in stream.sources(site)
        ]
        if attends:
            queries, gains = parameters["pseudo_queries"], parameters["key_gains"]
            reads.append(reference_mix(sources, queries[site], gains[site]))
        else:
            assert len(sources) == 1, "a stream with weights of another kind needs its own definition here"
            reads.append(sources[0])
    return reads


def stream_name(stream: Stream) -> str:
    """Name under which the class is registered."""
    return next(name for name in STREAMS.names() if STREAMS.get(name) is type(stream))


@EVERY_STREAM
def test_r01_law_4_reads_and_gradients_are_those_of_the_definition(stream_spec: StreamSpec) -> None:
    for depth in (1, 3, 5):
        stream = make(stream_spec_at(stream_spec, depth), small_shape(depth), dtype=torch.float64).stream
        parts = parts_of(stream)
        leaves = [*parts.values(), *stream.parameters()]
        found = []
        for reads in (own_reads(stream, parts), written_reads(stream, parts)):
            total = sum((read * (index + 1)).sin().sum() for index, read in enumerate(reads))
            gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
            found.append([*reads, *gradients])
        for own, written in zip(*found, strict=True):
            torch.testing.assert_close(own, written, rtol=1e-8, atol=1e-8)


def stream_spec_at(stream_spec: StreamSpec, depth: int) -> StreamSpec:
    """``stream_spec``, or the stream's first example where its options do not fit ``depth``."""
    shape = small_shape(depth)
    examples = STREAMS.get(stream_spec.name).examples(shape)
    return (
        stream_spec
        if stream_spec.options in examples
        else StreamSpec(name=stream_spec.name, options=examples[0])
    )


@EVERY_STREAM
def test_r12_read_normalised_is_the_norm_of_the_read(stream_spec: StreamSpec) -> None:
    stream = make(stream_spec, dtype=torch.float64).stream
    norm = RMSNorm(stream.shape.width).double()
    with torch.no_grad():
        norm.gain.copy_(torch.linspace(0.5, 2, stream.shape.width))
    parts = parts_of(stream)
    leaves = [*parts.values(), *stream.parameters(), norm.gain]
    found = []
    for fused in (True, False):
        state, reads = stream.start(parts["embedding"]), []
        for site in range(stream.shape.num_sublayers + 1):
            last = site == stream.shape.num_sublayers
            if fused:
                reads.append(stream.read_normalised(state, site, norm))
            else:
                reads.append(norm(stream.finish(state) if last else stream.read(state, site)))
            state = state if last else stream.write(state, site, parts[f"f{site}"])
        total = sum((read * (index + 1)).sin().sum() for index, read in enumerate(reads))
        gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        found.append([*reads, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@EVERY_STREAM
def test_a_sequence_does_not_depend_on_the_others_of_its_batch(stream_spec: StreamSpec) -> None:
    model = make(stream_spec)
    tokens = batch(model.shape, sequences=3)[:, :-1]
    changed = tokens.clone()
    changed[1] = (changed[1] + 1) % model.shape.vocab_size
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            before, after = model(tokens), model(changed)
        assert torch.equal(before[[0, 2]], after[[0, 2]])
        assert not torch.equal(before[1], after[1])


@EVERY_STREAM
def test_nothing_is_remembered_between_forward_passes(stream_spec: StreamSpec) -> None:
    model = make(stream_spec)
    first, other = batch(model.shape, seed=1)[:, :-1], batch(model.shape, sequences=5, seed=2)[:, :-1]
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            before = model(first).detach().clone()
            model(other)
            assert torch.equal(model(first), before)
    assert torch.equal(make(stream_spec)(first), before)


@EVERY_STREAM
def test_a_seed_gives_one_model_whatever_the_global_generator(stream_spec: StreamSpec) -> None:
    built = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        built.append(build(small_shape(), stream_spec, seed=0))
    for (name, one), (_, other) in zip(
        built[0].state_dict().items(), built[1].state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name
