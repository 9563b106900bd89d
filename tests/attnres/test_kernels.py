"""C kernels against plain torch, and against torch's own operators."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnres import kernels
from attnres.constants import NORM_EPSILON
from attnres.kernels import native
from attnres.norm import RMSNorm
from attnres.sublayers import _Rotate, _SwiGLU, rotary_table

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def close(one: Tensor, other: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("width", [1, 7, 64, 100])
def test_every_kernel_equals_plain_torch(dtype: torch.dtype, width: int) -> None:
    assert kernels.backend() == "c"
    torch.manual_seed(0)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    tokens, reads, count = 37, 5, 7

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        running, y = torch.randn(tokens, width, dtype=real), torch.randn(tokens, width, dtype=real).to(dtype)
        queries = torch.randn(reads, width, dtype=real)
        found = [*kernels.absorb(running, y, queries), *kernels.absorb(None, y, queries)]
        found += kernels.absorb(y, y, queries)
        sources = [torch.randn(tokens, width, dtype=real).to(dtype if i % 2 else real) for i in range(count)]
        logits = [torch.randn(3, tokens, dtype=real) * 3 for _ in range(count)]
        positions = [i % 3 for i in range(count)]
        gain = torch.randn(width, dtype=real)
        found += kernels.mix(sources, logits, positions)
        found += [
            t
            for t in kernels.mix_and_norm(sources, logits, positions, gain, dtype, keep_h=True)
            if t is not None
        ]
        found.append(kernels.remix(sources, queries[0]))
        v, r, own_logits = kernels.absorb(None, y, queries)
        grads = [torch.randn(tokens, width, dtype=real) for _ in range(reads)]
        stats = [torch.stack([own_logits[i] + 1, torch.randn(tokens, dtype=real)]) for i in range(reads)]
        for upstream in (None, torch.randn(tokens, width, dtype=real)):
            found += kernels.gather(v, r, own_logits, queries, grads, stats, upstream)
        normed, scale = kernels.norm_forward(y, gain, dtype)
        dx, dgain, along = kernels.norm_backward(y, gain, scale, normed)
        # dx . x is zero but for the epsilon: what is left is the rounding of its terms
        size = dx.to(real).norm(dim=-1) * y.to(real).norm(dim=-1) + 1
        return [*found, normed, scale, dx, dgain, along / size]

    fast = run()
    with kernels.only_torch():
        slow = run()
    for one, other in zip(fast, slow, strict=True):
        assert one.dtype == other.dtype
        close(one, other, dtype)


@pytest.mark.parametrize("plain", [False, True])
def test_remix_equals_mix_of_the_logits(plain: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randn(11, 24, generator=generator, dtype=torch.float64) * 10**i for i in range(-2, 3)]
    query = torch.randn(24, generator=generator, dtype=torch.float64)
    former = native.enable(not plain)
    try:
        logits = [kernels.absorb(None, source, query[None])[2] for source in sources]
        close(
            kernels.remix(sources, query), kernels.mix(sources, logits, [0] * len(sources))[0], torch.float64
        )
    finally:
        native.enable(former)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rms_norm_equals_torch(plain: bool, dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 24, dtype=dtype, requires_grad=True)
    norm = RMSNorm(24).to(dtype)
    with torch.no_grad():
        norm.gain.copy_(torch.randn(24))
    grad = torch.randn(3, 5, 24, dtype=dtype)
    expected = F.rms_norm(x, (24,), norm.gain, NORM_EPSILON)
    expected_gradients = torch.autograd.grad(expected, (x, norm.gain), grad)
    former = native.enable(not plain)
    try:
        y = norm(x)
        gradients = torch.autograd.grad(y, (x, norm.gain), grad)
    finally:
        native.enable(former)
    for one, other in zip([y, *gradients], [expected, *expected_gradients], strict=True):
        close(one, other, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_swiglu_equals_torch(dtype: torch.dtype) -> None:
    gate_up = (torch.randn(4, 5, 44, dtype=torch.float64) * 4).to(dtype).requires_grad_()
    gate, up = gate_up.double().chunk(2, -1)
    expected = F.silu(gate) * up
    grad = torch.randn(4, 5, 22, dtype=torch.float64).to(dtype)
    (expected_gradient,) = torch.autograd.grad(expected, gate_up, grad.double())
    y = _SwiGLU.apply(gate_up)
    (gradient,) = torch.autograd.grad(y, gate_up, grad)
    close(y, expected, dtype)
    close(gradient, expected_gradient, dtype)


def test_swiglu_of_extreme_gates() -> None:
    gate = torch.tensor([-1e4, -90.0, -20.0, 0.0, 20.0, 90.0, 1e4])
    gate_up = torch.cat([gate, torch.ones(7)]).requires_grad_()
    y = _SwiGLU.apply(gate_up[None])
    torch.testing.assert_close(y[0], F.silu(gate), rtol=1e-5, atol=1e-6)
    y.sum().backward()
    assert torch.isfinite(gate_up.grad).all()


def test_nan_is_not_swallowed() -> None:
    x = torch.ones(2, 8)
    x[1, 3] = float("nan")
    y, _ = kernels.norm_forward(x, torch.ones(8), torch.float32)
    assert torch.isfinite(y[0]).all() and y[1].isnan().all()
    assert kernels.swiglu_forward(x)[1].isnan().any()
    h, _ = kernels.mix([x, x], [torch.zeros(1, 2), torch.tensor([[0.0, float("nan")]])], [0, 0])
    assert torch.isfinite(h[0]).all() and h[1].isnan().all()
    low, _ = kernels.norm_forward(x, torch.ones(8), torch.bfloat16)
    assert low[1].isnan().all()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rotation_turns_planes_and_its_backward_is_the_transpose(plain: bool, dtype: torch.dtype) -> None:
    B, T, H, C = 2, 6, 3, 8
    cosine, sine = rotary_table(T, C)
    if dtype == torch.float64:
        cosine, sine = cosine.double(), sine.double()
    torch.manual_seed(0)
    qkv = torch.randn(B, T, 3, H, C, dtype=torch.float64).to(dtype)
    leaf = qkv.clone().requires_grad_()
    former = native.enable(not plain)
    try:
        q, k, v = _Rotate.apply(leaf * 1, cosine, sine)
        grads = [torch.randn_like(q) for _ in range(3)]
        (gradient,) = torch.autograd.grad([q, k, v], leaf, grads)
    finally:
        native.enable(former)
    pairs = torch.complex(qkv[..., : C // 2].double(), qkv[..., C // 2 :].double())
    turn = torch.complex(cosine[:, : C // 2].double(), -sine[:, : C // 2].double())[:, None, None]
    turned = pairs * turn
    expected = torch.cat([turned.real, turned.imag], -1).permute(2, 0, 3, 1, 4)
    close(q, expected[0], dtype)
    close(k, expected[1], dtype)
    close(v, qkv[:, :, 2].transpose(1, 2), dtype)
    back = torch.stack([grad.transpose(1, 2).double() for grad in grads], 2)
    unturned = torch.complex(back[..., : C // 2], back[..., C // 2 :]) * turn.conj()
    expected_back = torch.cat([unturned.real, unturned.imag], -1)
    expected_back[:, :, 2] = back[:, :, 2]
    close(gradient, expected_back, dtype)


def test_scores_depend_on_distance_alone() -> None:
    cosine, sine = rotary_table(32, 8)
    q, k = torch.randn(2, 1, 1, 1, 1, 8)
    qkv = torch.cat([q.expand(1, 32, 1, 1, 8), k.expand(1, 32, 1, 1, 8), q.expand(1, 32, 1, 1, 8)], 2)
    turned_q, turned_k, _ = _Rotate.apply(qkv.contiguous(), cosine, sine)
    scores = turned_q[0, 0] @ turned_k[0, 0].T
    for distance in (0, 3, 11):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)


def test_threads_share_the_tokens() -> None:
    x, gain = torch.randn(1000, 32), torch.randn(32)
    y, r = kernels.norm_forward(x, gain, torch.float32)
    alone = [y, *kernels.norm_backward(x, gain, r, y)]
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        y, r = kernels.norm_forward(x, gain, torch.float32)
        together = [y, *kernels.norm_backward(x, gain, r, y)]
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other)


def test_tensors_the_kernels_do_not_serve_go_to_plain_torch() -> None:
    assert native.serving([torch.ones(2)]) is not None
    assert native.serving([torch.ones(2, device="meta")]) is None
    assert native.serving([torch.ones(2, dtype=torch.float16)]) is None
    assert native.serving([torch.ones(2)], [torch.ones(2, dtype=torch.float64)]) is None
    assert native.serving([torch.ones(2, dtype=torch.bfloat16)], [torch.ones(2, dtype=torch.float64)]) is None
    assert native.serving([torch.ones(2)], [torch.ones(2, dtype=torch.bfloat16)]) is None


@pytest.mark.parametrize("environment", [{"CC": "no-such-compiler", "PATH": ""}, {"CC": "false"}])
def test_without_a_working_compiler_training_goes_on_in_plain_torch(
    environment: dict, tmp_path: Path
) -> None:
    program = """
import torch
from attnres import kernels
from attnres.initialise import build
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
shape = ModelShape(depth=2, width=16, num_heads=2, mlp_width=24, vocab_size=32, seq_len=8)
model = build(shape, StreamSpec(name="full_attnres"), seed=0)
tokens = torch.arange(16).view(2, 8)
model.loss(tokens, tokens).backward()
print(kernels.backend())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torch"
