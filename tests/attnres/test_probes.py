"""Probes on every registered stream: values against independent formulas, and that they change nothing."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from attnres.constants import NORM_EPSILON
from attnres.decoder import Decoder
from attnres.probes import NO_SOURCE, IncompleteDynamicsError, Probe, Reading
from attnres.stream_spec import StreamSpec
from attnres.streams.base import STREAMS, Mixture, Stream
from tests.laws.subjects import EVERY_STREAM, batch, each, make, of_law, small_shape

Table = dict[tuple[str, int, int], float]


def probed(
    model: Decoder, tokens: torch.Tensor, *, sizes: tuple[int, ...] = (), autocast: bool = False
) -> Table:
    """Readings of one batch, in micro-batches of ``sizes``, as {(quantity, site, source): value}."""
    model.zero_grad(set_to_none=True)
    with Probe(model) as probe:
        for micro in tokens.split(list(sizes) or [len(tokens)]):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model.loss(micro[:, :-1], micro[:, 1:]) * len(micro) / len(tokens)
            loss.backward()
    return as_table(probe.readings())


def as_table(readings: list[Reading]) -> Table:
    return {(one.quantity, one.site, one.source): one.value for one in readings}


def rms(tensor: torch.Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


def assert_close(left: Table, right: Table, tolerance: float, quantities: tuple[str, ...] = ()) -> None:
    assert set(left) == set(right)
    for key, value in left.items():
        if not quantities or key[0] in quantities:
            assert value == pytest.approx(right[key], rel=tolerance, abs=1e-7), key


def mixes(model: Decoder) -> bool:
    """Whether the stream says what its reads are made of."""
    return type(model.stream).mixture is not Stream.mixture


class Passes:
    """The same forward pass written again, by the stream's definition, keeping every tensor."""

    def __init__(self, model: Decoder, tokens: torch.Tensor) -> None:
        stream, positions = model.stream, model.positions(0, tokens.shape[1] - 1)
        self.embedding = F.embedding(tokens[:, :-1], model.embedding)
        state = stream.start(self.embedding)
        self.reads, self.outputs = [], []
        for site, sublayer in enumerate(model.sublayers):
            self.reads.append(stream.read(state, site))
            y = sublayer(sublayer.norm(self.reads[-1]), positions)
            self.outputs.append(y)
            state = stream.write(state, site, y)
        self.reads.append(stream.finish(state))
        logits = F.linear(model.norm(self.reads[-1]), model.head.weight)
        self.loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def source(self, name: str) -> torch.Tensor:
        """The tensor that a name of `Stream.sources` stands for."""
        parts = [
            self.embedding if one == "embedding" else self.outputs[int(one[1:])] for one in name.split("+")
        ]
        return torch.stack(parts).sum(0)


def weights_by_definition(model: Decoder, passes: Passes, site: int) -> torch.Tensor:
    """softmax(w . RMSNorm(v)) over the named sources, in fp64: (n, B, T)."""
    depth_attention = model.stream.depth_attention
    values = torch.stack([passes.source(name) for name in model.stream.sources(site)]).double()
    keys = values * (values.square().mean(-1, keepdim=True) + NORM_EPSILON).rsqrt()
    keys = keys * depth_attention.key_gains[site].double()
    return (keys @ depth_attention.pseudo_queries[site].double()).softmax(0)


@EVERY_STREAM
def test_magnitudes_and_gradients_equal_autograds_own(stream_spec: StreamSpec) -> None:
    shape = small_shape()
    model, tokens = make(stream_spec, shape), batch(shape, 4)
    found = probed(model, tokens)
    passes = Passes(model, tokens)
    gradients = torch.autograd.grad(passes.loss, [*passes.outputs, *model.parameters()])
    own = dict(
        zip((name for name, _ in model.named_parameters()), gradients[shape.num_sublayers :], strict=True)
    )
    for site in range(shape.num_sublayers + 1):
        assert found["hidden", site, NO_SOURCE] == pytest.approx(rms(passes.reads[site]), rel=1e-5)
    for site in range(shape.num_sublayers):
        assert found["output", site, NO_SOURCE] == pytest.approx(rms(passes.outputs[site]), rel=1e-5)
        assert found["gradient", site, NO_SOURCE] == pytest.approx(rms(gradients[site]), rel=1e-4)
    for block in range(shape.depth):
        prefixes = (f"sublayers.{2 * block}.", f"sublayers.{2 * block + 1}.")
        squares = sum(g.double().square().sum().item() for n, g in own.items() if n.startswith(prefixes))
        assert found["parameter_gradient", 2 * block + 1, NO_SOURCE] == pytest.approx(squares**0.5, rel=1e-4)


@EVERY_STREAM
def test_mixing_weights_equal_their_definition_and_sum_to_one(stream_spec: StreamSpec) -> None:
    shape = small_shape()
    model, tokens = make(stream_spec, shape), batch(shape, 4)
    found = probed(model, tokens)
    passes = Passes(model, tokens)
    for site in range(shape.num_sublayers + 1):
        if not mixes(model):
            sources = [passes.embedding, *passes.outputs[:site]]
            weights = torch.ones(len(sources), *sources[0].shape[:2], dtype=torch.float64)
        else:
            sources = [passes.source(name) for name in model.stream.sources(site)]
            weights = weights_by_definition(model, passes, site)
            own = [found["weight", site, source] for source in range(len(sources))]
            assert sum(own) == pytest.approx(1.0, abs=1e-6)
            entropy = -(weights * weights.log()).sum(0).mean().item()
            assert found["entropy", site, NO_SOURCE] == pytest.approx(entropy, abs=1e-6)
            largest = weights.amax(0).mean().item()
            assert found["largest_weight", site, NO_SOURCE] == pytest.approx(largest, rel=1e-5)
        assert ("weight", site, len(sources)) not in found
        for source, (value, weight) in enumerate(zip(sources, weights, strict=True)):
            assert found["weight", site, source] == pytest.approx(weight.mean().item(), rel=1e-5)
            contribution = rms(weight.unsqueeze(-1) * value.double())
            assert found["contribution", site, source] == pytest.approx(contribution, rel=1e-5)


@EVERY_STREAM
def test_the_read_is_its_mixture(stream_spec: StreamSpec) -> None:
    """With and without gradients, where a stream may carry its state in another way."""
    shape = small_shape()
    model, tokens = make(stream_spec, shape), batch(shape)

    class Checked:
        def __init__(self, stream) -> None:
            self.stream, self.start = stream, stream.start

        def read_normalised(self, state, site, norm):
            last = site == shape.num_sublayers
            own = self.stream.finish(state) if last else self.stream.read(state, site)
            mixture = self.stream.mixture(state, site)
            if mixture is not None:
                made = torch.einsum("nbt,nbtd->btd", mixture.weights_nBT, torch.stack(mixture.values))
                torch.testing.assert_close(made, own, rtol=1e-5, atol=1e-6)
                assert len(mixture.values) == len(self.stream.sources(site))
            return self.stream.read_normalised(state, site, norm)

        def write(self, state, site, y):
            return self.stream.write(state, site, y)

    model.stand_in = Checked
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    with torch.no_grad():
        torch.testing.assert_close(model.loss(tokens[:, :-1], tokens[:, 1:]), loss)


@each(of_law("zero_query_parity"))
def test_with_zero_queries_outputs_and_gradients_are_the_baselines(stream_spec: StreamSpec) -> None:
    """And the reads differ by exactly 1/n."""
    shape = small_shape()
    tokens = batch(shape, 4)
    base = probed(make(StreamSpec(name="additive"), shape), tokens)
    model = make(stream_spec, shape, moved=False)
    own = probed(model, tokens)
    for site in range(shape.num_sublayers):
        for quantity in ("output", "gradient"):
            key = (quantity, site, NO_SOURCE)
            assert own[key] == pytest.approx(base[key], rel=1e-4), key
    for site in range(shape.num_sublayers + 1):
        number = len(model.stream.sources(site))
        read = ("hidden", site, NO_SOURCE)
        assert own[read] * number == pytest.approx(base[read], rel=1e-5)
        if mixes(model):
            assert own["entropy", site, NO_SOURCE] == pytest.approx(math.log(number), abs=1e-6)


@EVERY_STREAM
def test_a_probe_changes_nothing(stream_spec: StreamSpec) -> None:
    """Loss, gradients and the random state bit for bit, in fp32 and autocast, in micro-batches."""
    shape = small_shape()
    model, tokens = make(stream_spec, shape), batch(shape, 5)
    for autocast in (False, True):
        results = []
        for watched in (False, True):
            torch.manual_seed(3)
            model.zero_grad(set_to_none=True)
            losses = []
            probe = Probe(model)
            if watched:
                probe.__enter__()
            for micro in tokens.split(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    losses.append(model.loss(micro[:, :-1], micro[:, 1:]))
                losses[-1].backward()
            if watched:
                probe.__exit__(None, None, None)
                assert probe.readings()
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            results.append([*(loss.detach() for loss in losses), *gradients, torch.get_rng_state()])
        assert all(torch.equal(left, right) for left, right in zip(*results, strict=True))
    assert model.stand_in is None


@EVERY_STREAM
def test_d01_gradients_agree_under_autocast(stream_spec: StreamSpec) -> None:
    """bf16 products keep 8 bits: 2^-8 a product, a few of them in a row."""
    shape = small_shape()
    model, tokens = make(stream_spec, shape), batch(shape, 8)
    exact, mixed = probed(model, tokens), probed(model, tokens, autocast=True)
    assert_close(mixed, exact, 0.03)
    assert mixed != exact


@EVERY_STREAM
def test_d03_accumulated_gradients_equal_those_of_one_batch(stream_spec: StreamSpec) -> None:
    """1 x 8 against 8 x 1 and 5 + 3 sequences, in fp32."""
    shape = small_shape()
    model, tokens = make(stream_spec, shape), batch(shape, 8)
    whole = probed(model, tokens)
    for sizes in ((1,) * 8, (5, 3)):
        assert_close(probed(model, tokens, sizes=sizes), whole, 3e-6)
    # autocast rounds each product, the sums stay fp32
    assert_close(
        probed(model, tokens, sizes=(1,) * 8, autocast=True), probed(model, tokens, autocast=True), 0.01
    )


def through(runner, model: Decoder, tokens: torch.Tensor) -> Table:
    """Readings of a step whose loss is computed by ``runner(loss, inputs, targets)``."""
    model.zero_grad(set_to_none=True)
    with Probe(model) as probe:
        runner(model.loss, tokens[:, :-1], tokens[:, 1:]).backward()
    return as_table(probe.readings())


@EVERY_STREAM
def test_probes_are_right_under_activation_checkpointing(stream_spec: StreamSpec) -> None:
    """The replayed pass is seen as well: every mean is over twice the tokens, the gradient over its own."""
    shape = small_shape()
    model, tokens = make(stream_spec, shape), batch(shape, 4)
    replayed = through(lambda loss, *ends: checkpoint(loss, *ends, use_reentrant=False), model, tokens)
    assert_close(replayed, probed(model, tokens), 1e-5)


@pytest.mark.parametrize("name", STREAMS.names())
def test_d04_probes_see_the_same_under_compile(name: str) -> None:
    torch._dynamo.reset()
    shape = small_shape(1)
    model = make(StreamSpec(name=name, options=STREAMS.get(name).examples(shape)[-1]), shape)
    tokens = batch(shape, 4)
    compiled = torch.compile(model.loss, backend="eager")
    compiled(tokens[:, :-1], tokens[:, 1:]).backward()
    seen = through(lambda _, *ends: compiled(*ends), model, tokens)
    assert_close(seen, probed(model, tokens), 1e-4)


def test_d04_a_layer_that_was_not_seen_is_an_error() -> None:
    shape = small_shape()
    model, tokens = make(StreamSpec(name="full_attnres"), shape), batch(shape)
    with Probe(model) as probe:
        pass
    with pytest.raises(IncompleteDynamicsError, match="hidden at site 0 was not measured"):
        probe.readings()
    with Probe(model) as probe, torch.no_grad():
        model.loss(tokens[:, :-1], tokens[:, 1:])
    with pytest.raises(IncompleteDynamicsError, match="gradient at site 0 was not measured"):
        probe.readings()
    for key, problem in (
        (("output", 3), "output at site 3"),
        (("parameter_gradient", 5), "parameter_gradient at site 5"),
    ):
        with Probe(model) as probe:
            model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        del probe._tallies[key]
        with pytest.raises(IncompleteDynamicsError, match=f"{problem} was not measured"):
            probe.readings()


def test_a_stream_that_hides_a_source_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = STREAMS.get("full_attnres")
    original = stream.mixture

    def shorter(self, state, site):
        whole = original(self, state, site)
        return Mixture(whole.weights_nBT[:1], whole.values[:1])

    monkeypatch.setattr(stream, "mixture", shorter)
    model, tokens = make(StreamSpec(name="full_attnres")), batch(small_shape())
    with pytest.raises(ValueError, match="zip"):
        probed(model, tokens)


def test_readings_that_are_no_numbers_are_an_error() -> None:
    model, tokens = make(StreamSpec(name="additive")), batch(small_shape())
    with torch.no_grad():
        model.sublayers[2].out.weight[0, 0] = float("inf")
    with pytest.raises(IncompleteDynamicsError, match=r"\w+ at site \d is (nan|inf)"):
        probed(model, tokens)


def test_a_probe_leaves_the_model_when_a_step_fails() -> None:
    model = make(StreamSpec(name="additive"))
    with pytest.raises(ZeroDivisionError), Probe(model):
        raise ZeroDivisionError
    assert model.stand_in is None
    assert "stand_in" not in "".join(model.state_dict())
    copy.deepcopy(model)
