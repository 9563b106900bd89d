"""The C kernels: compiled on first use by the machine's own compiler, called through ctypes.

Without a compiler, or for tensors the kernels do not serve, callers get None and use `plain`.
The library is kept in the user's cache under a name made of everything that shapes it: source, flags,
compiler and processor, so that machines that share a home directory never run each other's code.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnres.files import atomic_path

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",  # sums of a row may be taken in lanes; NaN and infinity keep their meaning
    "-shared",
    "-fPIC",
)
REALS = {torch.float32: "float", torch.float64: "double"}
MAX_WIDTH = 16384
MAX_SOURCES = 1024
COMPILE_SECONDS = 120
TOKENS_A_THREAD = 64

SIGNATURES = {
    "absorb": "llldpipipppp",
    "mix": "lldpppppppip",
    "remix": "lldpppp",
    "gather": "lllpipppppppp",
    "norm_forward": "ldpippip",
    "norm_backward": "lpipppippp",
    "swiglu_forward": "lpip",
    "swiglu_backward": "lppip",
    "rotate": "lllpipp",
    "rotate_backward": "lllppippp",
}
"""Arguments of each kernel after begin and end: l long, d double, i int, p pointer."""
_TYPES = {"l": ctypes.c_long, "d": ctypes.c_double, "i": ctypes.c_int, "p": ctypes.c_void_p}


class Library:
    """The kernels for one number type."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._functions: dict[str, Callable[..., None]] = {}
        for name, signature in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = [_TYPES[letter] for letter in "ll" + signature]
            function.restype = None
            self._functions[name] = function

    def run(self, name: str, tokens: int, *arguments: Any) -> None:
        """Call kernel ``name`` on every token, split over torch's threads (ctypes frees the interpreter)."""
        threads = _threads(tokens)
        if threads == 1:
            self._functions[name](0, tokens, *arguments)
        else:
            self._split(name, tokens, [arguments] * threads)

    def run_sum(
        self, name: str, tokens: int, total: Tensor, arguments: Callable[[Tensor], Sequence[Any]]
    ) -> None:
        """As `run` for a kernel that adds to ``total`` over tokens: each thread adds to its own part."""
        threads = _threads(tokens)
        if threads == 1:
            self._functions[name](0, tokens, *arguments(total.zero_()))
            return
        parts = total.new_zeros(threads, *total.shape)
        self._split(name, tokens, [arguments(part) for part in parts])
        torch.sum(parts, 0, out=total)

    def _split(self, name: str, tokens: int, arguments: Sequence[Sequence[Any]]) -> None:
        """One share of the tokens for each set of arguments, side by side."""
        edges = [tokens * index // len(arguments) for index in range(len(arguments) + 1)]
        pool = _pool(len(arguments))
        calls = [
            pool.submit(self._functions[name], begin, end, *own)
            for (begin, end), own in zip(pairwise(edges), arguments, strict=True)
        ]
        for call in calls:
            call.result()


def _threads(tokens: int) -> int:
    return 1 if tokens < 2 * TOKENS_A_THREAD else min(torch.get_num_threads(), tokens // TOKENS_A_THREAD)


def address(tensor: Tensor | None) -> int | None:
    """Where ``tensor`` lies (null for None)."""
    return None if tensor is None else tensor.data_ptr()


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Where each of ``tensors`` lies."""
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def row_addresses(
    matrices: Sequence[Tensor], rows: Sequence[int], stride: int
) -> ctypes.Array[ctypes.c_void_p]:
    """Where row ``rows[i]`` of each contiguous matrix lies, rows being ``stride`` bytes apart."""
    places = [matrix.data_ptr() + row * stride for matrix, row in zip(matrices, rows, strict=True)]
    return (ctypes.c_void_p * len(places))(*places)


def code(tensor: Tensor) -> int:
    """How the kernels name the element type of ``tensor``."""
    return 1 if tensor.dtype == torch.bfloat16 else 0


def codes(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int]:
    """`code` of each of ``tensors``."""
    return (ctypes.c_int * len(tensors))(*[code(tensor) for tensor in tensors])


def serving(coded: Sequence[Tensor | None], real: Sequence[Tensor | None] = ()) -> Library | None:
    """The library that can work on these tensors, or None.

    Args:
        coded: tensors whose element type the kernel is told: all of the real type, or bf16.
        real: tensors of the real type (fp32 or fp64). Both may hold None.
    """
    if not _enabled or torch.compiler.is_compiling():
        return None
    number = None
    for tensor in (*real, *coded):
        if tensor is None:
            continue
        if not tensor.is_cpu or type(tensor) not in PLAIN:
            return None
        kind = tensor.dtype
        if number is None and kind in REALS:
            number = kind
        if kind != number and (kind != torch.bfloat16 or number == torch.float64):
            return None
    if any(tensor is not None and tensor.dtype == torch.bfloat16 for tensor in real):
        return None
    return _library(REALS[number or torch.float32])


PLAIN = frozenset((Tensor, nn.Parameter))
"""Kinds of tensors with memory of their own: no tracer's, no subclass."""


def available() -> bool:
    """Whether the kernels could be compiled here."""
    return _library("float") is not None


_enabled = True


def enable(wanted: bool) -> bool:
    """Switch the kernels on or off; returns the former state."""
    global _enabled
    former, _enabled = _enabled, wanted
    return former


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kernel")


@lru_cache
def _library(real: str) -> Library | None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        return None
    for folder in _cache_folders():
        path = folder / f"kernels-{_fingerprint(compiler, real)}.so"
        if path.exists() or _compile(compiler, real, path):
            return Library(path)
    return None


def _cache_folders() -> list[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnres"
    return [cache, Path(tempfile.gettempdir()) / f"attnres-{os.getuid()}"]


def _fingerprint(compiler: str, real: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    processor = Path("/proc/cpuinfo")
    features = [
        line
        for line in (processor.read_text().splitlines() if processor.exists() else [])
        if line.startswith(("model name", "flags", "Features"))
    ]
    parts = [SOURCE.read_bytes(), real.encode(), " ".join(FLAGS).encode(), version]
    return hashlib.sha256(
        b"\0".join([*parts, *(line.encode() for line in sorted(set(features)))])
    ).hexdigest()[:16]


def _compile(compiler: str, real: str, path: Path) -> bool:
    """Whether the library now lies at ``path``; False where nothing can be written or built."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            command = [
                compiler,
                *FLAGS,
                f"-DREAL={real}",
                "-x",
                "c",
                str(SOURCE),
                "-o",
                str(temporary),
                "-lm",
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
