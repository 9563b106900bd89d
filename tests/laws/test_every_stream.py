"""Laws that concern every registered stream (docs/method.md, section 3)."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from attnres.accounting import flops_per_token
from attnres.decoder import Decoder
from attnres.initialise import build
from attnres.norm import RMSNorm
from attnres.parameters import is_decayed, parameter_groups
from attnres.stream_spec import StreamSpec
from attnres.streams.base import STREAMS, Stream
from tests.laws.subjects import (
    EVERY_STREAM,
    batch,
    each,
    loss_and_gradients,
    make,
    of_law,
    small_shape,
    trained_like,
)


@EVERY_STREAM
def test_law_1_no_logit_before_a_changed_token_moves(stream_spec: StreamSpec) -> None:
    shape = small_shape()
    model = make(stream_spec, shape)
    tokens = batch(shape)[:, :-1]
    changed = tokens.clone()
    position = 7
    changed[:, position] = (changed[:, position] + 1) % shape.vocab_size
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :position], after[:, :position])
    assert not torch.equal(before[:, position:], after[:, position:])


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("name", sorted({spec.name for spec in of_law("zero_query_parity")} - {"additive"}))
def test_r03_law_2_zero_queries_equal_prenorm(name: str, depth: int) -> None:
    shape = small_shape(depth)
    tokens = batch(shape)
    baseline = make(StreamSpec(name="additive"), shape, moved=False)
    base_logits = baseline(tokens[:, :-1])
    base_loss, base_gradients = loss_and_gradients(baseline, tokens)
    for options in STREAMS.get(name).examples(shape):
        model = make(StreamSpec(name=name, options=options), shape, moved=False)
        assert (model(tokens[:, :-1]) - base_logits).abs().max() < 1e-4
        loss, gradients = loss_and_gradients(model, tokens)
        assert abs(loss - base_loss) < 1e-5
        for key, expected in base_gradients.items():
            gap = (gradients[key] - expected).norm() / expected.norm()
            assert gap < 1e-3, f"{options}: gradient of {key} is {gap:.1e} off"


@each([spec for spec in of_law("equals_additive") if spec.name != "additive"])
def test_a_control_computes_the_additive_stream_to_the_last_bit_and_costs_more(
    stream_spec: StreamSpec,
) -> None:
    shape = small_shape()
    tokens = batch(shape)
    baseline, control = make(StreamSpec(name="additive"), shape), make(stream_spec, shape)
    assert torch.equal(control(tokens[:, :-1]), baseline(tokens[:, :-1]))
    base_loss, base_gradients = loss_and_gradients(baseline, tokens)
    loss, gradients = loss_and_gradients(control, tokens)
    assert torch.equal(loss, base_loss)
    for name, expected in base_gradients.items():
        assert torch.equal(gradients[name], expected), name
    for name in gradients.keys() - base_gradients.keys():
        assert torch.count_nonzero(gradients[name]) == 0, name
    assert flops_per_token(shape, stream_spec).stream > 0


@EVERY_STREAM
@pytest.mark.parametrize("through_meta", [False, True])
def test_law_3_stream_parameters_start_as_declared_after_the_whole_build(
    stream_spec: StreamSpec, through_meta: bool
) -> None:
    shape = small_shape()
    if through_meta:
        from attnres.initialise import initialise

        model = build(shape, stream_spec, seed=0, device="meta").to_empty(device="cpu")
        initialise(model, seed=0)
    else:
        model = build(shape, stream_spec, seed=0)
    for name, parameter in model.stream.named_parameters():
        if "pseudo_quer" in name:
            assert torch.count_nonzero(parameter) == 0, name
        elif "gain" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
    reference = build(shape, StreamSpec(name="additive"), seed=0)
    shared = dict(model.named_parameters())
    for name, parameter in reference.named_parameters():
        assert torch.equal(shared[name], parameter), f"{name} does not start equal in every arm"
    for name, buffer in reference.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer), name


@pytest.mark.parametrize("depth", range(1, 5))
@pytest.mark.parametrize("name", STREAMS.names())
def test_law_5_a_read_depends_on_exactly_the_sources_it_names(name: str, depth: int) -> None:
    shape = small_shape(depth)
    for options in STREAMS.get(name).examples(shape):
        assert_reads_match_their_names(make(StreamSpec(name=name, options=options), shape).stream)


def assert_reads_match_their_names(stream: Stream) -> None:
    shape = stream.shape
    parts = {
        name: torch.randn(1, 2, shape.width, requires_grad=True)
        for name in ["embedding", *(f"f{site}" for site in range(shape.num_sublayers))]
    }
    state = stream.start(parts["embedding"])
    for site in range(shape.num_sublayers + 1):
        last = site == shape.num_sublayers
        read = stream.finish(state) if last else stream.read(state, site)
        gradients = torch.autograd.grad(
            read.square().sum(), list(parts.values()), retain_graph=True, allow_unused=True
        )
        seen = {
            name
            for name, gradient in zip(parts, gradients, strict=True)
            if gradient is not None and gradient.abs().max() > 0
        }
        named = [part for source in stream.sources(site) for part in source.split("+")]
        assert seen == set(named), f"{stream.options}: read {site}"
        assert len(named) == len(set(named)), f"read {site} names a part twice: {stream.sources(site)}"
        if not last:
            state = stream.write(state, site, parts[f"f{site}"])


@EVERY_STREAM
def test_law_6_stored_tensors_never_change_and_every_output_gets_gradient(stream_spec: StreamSpec) -> None:
    shape = small_shape()
    stream = make(stream_spec, shape).stream
    outputs = [torch.randn(2, 3, shape.width, requires_grad=True) for _ in range(shape.num_sublayers)]
    embedding = torch.randn(2, 3, shape.width, requires_grad=True)
    state = stream.start(embedding)
    stored: list[tuple[torch.Tensor, torch.Tensor]] = []
    reads = []
    for site, output in enumerate(outputs):
        stored += [(tensor, tensor.detach().clone()) for tensor in state]
        reads.append(stream.read(state, site))
        state = stream.write(state, site, output)
    reads.append(stream.finish(state))
    sum(read.square().sum() for read in reads).backward()
    for tensor, copy in stored:
        assert torch.equal(tensor.detach(), copy)
    for tensor in [embedding, *outputs]:
        assert tensor.grad is not None
        assert tensor.grad.abs().max() > 0


@EVERY_STREAM
@pytest.mark.parametrize("reentrant", [False, True])
def test_law_8_r14_activation_checkpointing_changes_nothing(stream_spec: StreamSpec, reentrant: bool) -> None:
    shape = small_shape()
    model = make(stream_spec, shape)
    tokens = batch(shape)
    plain_loss, plain_gradients = loss_and_gradients(model, tokens)

    def forward(model: Decoder, tokens_BT: torch.Tensor) -> torch.Tensor:
        state = model.stream.start(torch.nn.functional.embedding(tokens_BT, model.embedding))
        for site, sublayer in enumerate(model.sublayers):

            def replayed(*state: torch.Tensor, site: int = site, sublayer: torch.nn.Module = sublayer):
                x = model.stream.read_normalised(state, site, sublayer.norm)
                return sublayer(x, model.positions(0, tokens_BT.shape[1]))

            y = checkpoint(replayed, *state, use_reentrant=reentrant)
            state = model.stream.write(state, site, y)
        logits = torch.nn.functional.linear(model.norm(model.stream.finish(state)), model.head.weight)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    model.zero_grad(set_to_none=True)
    loss = forward(model, tokens[:, :-1])
    loss.backward()
    assert abs(loss - plain_loss) < 1e-6
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain_gradients[name], rtol=1e-5, atol=1e-6)


@EVERY_STREAM
def test_law_10_every_parameter_gets_a_gradient_tensor(stream_spec: StreamSpec) -> None:
    shape = small_shape()
    for moved in (False, True):
        _, gradients = loss_and_gradients(make(stream_spec, shape, moved=moved), batch(shape))
        for name, gradient in gradients.items():
            assert gradient is not None, f"{name} has no gradient: DDP would stall"
            assert torch.isfinite(gradient).all(), name


@EVERY_STREAM
def test_r19_law_11_vectors_are_undecayed_and_each_parameter_is_in_one_group(stream_spec: StreamSpec) -> None:
    model = make(stream_spec)
    groups = parameter_groups(model, weight_decay=0.1)
    members = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, members)) == sorted(id(parameter) for parameter in model.parameters())
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    gains = [module.gain for module in model.modules() if isinstance(module, RMSNorm)]
    for vector in [*gains, model.embedding]:
        assert decay[id(vector)] == 0
    for name, parameter in model.stream.named_parameters():
        if "pseudo_quer" in name or "gain" in name:
            assert decay[id(parameter)] == 0, name
            assert not is_decayed(f"stream.{name}", parameter)
    for name, parameter in model.named_parameters():
        if name.startswith("sublayers.") and name.endswith("weight"):
            assert decay[id(parameter)] == 0.1, name


@EVERY_STREAM
def test_r16_a_checkpoint_of_another_arm_is_refused(stream_spec: StreamSpec) -> None:
    other = StreamSpec(name="additive" if stream_spec.name != "additive" else "full_attnres")
    model, foreign = make(stream_spec), make(other)
    if set(model.state_dict()) == set(foreign.state_dict()):
        other = StreamSpec(name="additive")
        foreign = make(other)
    with pytest.raises(RuntimeError, match="Missing key|Unexpected key"):
        model.load_state_dict(foreign.state_dict())


@EVERY_STREAM
def test_two_forwards_before_one_backward_do_not_mix(stream_spec: StreamSpec) -> None:
    """State is functional: gradient accumulation over interleaved graphs is the sum of the parts."""
    shape = small_shape()
    model = make(stream_spec, shape, dtype=torch.float64)
    one, two = batch(shape, seed=1), batch(shape, seed=2)
    _, first = loss_and_gradients(model, one)
    _, second = loss_and_gradients(model, two)
    model.zero_grad(set_to_none=True)
    losses = [model.loss(tokens[:, :-1], tokens[:, 1:]) for tokens in (one, two)]
    (losses[0] + losses[1]).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, first[name] + second[name], rtol=1e-9, atol=1e-11)


@EVERY_STREAM
def test_evaluation_without_gradients_gives_the_same_logits(stream_spec: StreamSpec) -> None:
    shape = small_shape()
    model = trained_like(make(stream_spec, shape))
    tokens = batch(shape)[:, :-1]
    expected = model(tokens).detach()
    with torch.no_grad():
        assert torch.equal(model(tokens), expected)
    with torch.inference_mode():
        assert torch.equal(model(tokens), expected)


def test_no_law_is_left_without_a_subject() -> None:
    import dataclasses

    from attnres.streams.base import Laws

    for field in dataclasses.fields(Laws):
        assert of_law(field.name)
