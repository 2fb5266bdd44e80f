"""Every public name called with nonsense: a LabError, a TypeError in one sentence that names the argument, or a result.

A call begins with arguments that are valid, by the names of the parameters; then one or two of them are replaced. What
a call draws depends on the seed and the call's number alone. The calls are made in a process of its own, whose memory
is limited; where it dies or a call does not end, that is a fault of the call, and another process makes those after it.

``python -m tests.withstand.fuzz FIRST LAST SEED`` makes the calls FIRST to LAST - 1 and prints their faults.
"""

import contextlib
import functools
import inspect
import io
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fplab
from fplab.errors import _annotated

from . import Counts

TITLE = "calls of public names with nonsense"
QUICK, FULL = 3_000, 1_000_000
SEVERAL = 0.3  # the share of calls in which two arguments are nonsense

# --- doors -------------------------------------------------------------------------------------------------------
MODULES = (
    "", "bounds", "claims", "codebooks", "course", "exact", "exercises", "experiments", "formats", "inspection",
    "integers", "memory", "nn", "nn.device", "nn.recipes", "pages", "parallel", "scaled", "sums", "tapered",
    "tensorcore", "training",
)  # fmt: skip
# Doors that take a tenth of a second or more: they train, draw or start threads. They have a share of their own.
RARE = {
    "training.fit", "training.train", "training.accuracy", "training.digits_net", "training.characters",
    "training.StableEmbedding", "memory.build", "memory.trace", "memory.saved_by", "memory.smallest", "exercises.check",
    "tensorcore.separate", "tensorcore.infer", "tensorcore.classes", "course.evidence",
    "course.figure", "course.glossary", "claims.tried",
    "claims.overview", "nn.observe", "nn.fake_quantized", "nn.int8_linears", "nn.int4_linears", "nn.emulate",
    "nn.shadow", "nn.survey", "nn.explain", "nn.rollout_gap", "tensorcore.explore",
    "nn.conversion", "reveal_order", "training.tensors", "parallel.execute", "parallel.reduce_fast", "experiments.load",
    "codebooks.quantile", "exercises.registry", "exercises.names", "course.hardware", "training.digits",
}  # fmt: skip
# Those that take seconds or minutes: processes, drawings, whole pages.
SLOW = {"parallel.launch", "experiments.show", "pages.write"}
SHARES = {"rare": 1 / 150, "slow": 1 / 25_000}
# What is not called: it prints, or changes a notebook.
CLOSED = {"course.start", "course.style", "course.tell", "course.Selector"}
MOST_SHOWN = 1_000_000  # characters of a result's representation, which may hold what was given
MOST_SAID = 2_000  # characters of a refusal
LIMIT = 60  # seconds after which a call counts as one that never ends
MEMORY = 6 << 30  # bytes that the process of the calls may have
UNITS = {"bytes": 1, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}
EMULATED = 0.1  # the share of recipes returned that a net is trained in


def doors() -> dict[str, Callable[..., Any]]:
    """Every public callable by name: functions and classes of the package and of its subpackages."""
    found: dict[str, Callable[..., Any]] = {}
    for module in MODULES:
        home = import_module(f"fplab.{module}".rstrip("."))
        for name in home.__all__ if hasattr(home, "__all__") else _own(home):
            value = getattr(home, name)
            full = f"{module}.{name}".strip(".")
            if callable(value) and full not in CLOSED and not _is_plain(value):
                found[full] = value
    return found


def _own(module: Any) -> list[str]:
    return [
        n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__
    ]


def _is_plain(value: Any) -> bool:
    """Enumerations, exceptions, and records of results, which hold what they are given."""
    if not inspect.isclass(value):
        return False
    return issubclass(value, Exception) or hasattr(value, "__members__") or value.__name__ in RESULTS


RESULTS = {
    "Part", "Claim", "Picture", "Claims", "Recorded", "Exercise", "Mutant", "Report", "Solution", "Given", "Inspection",
    "Row", "Estimate", "Rank", "Saved", "Chapter", "RankResult", "Result", "Sent", "Timeline", "Collective", "Job",
    "Digits", "Dtype", "Experiment", "Fit", "Run", "Snapshot", "Quantized", "Groups", "Exact", "Bounds", "Gamma",
    "Inference", "Packed", "Scaled", "ScaledTensor",
}  # fmt: skip

# --- valid arguments, by parameter, or by door and parameter --------------------------------------------------------
FORMATS = ("fp16", "bf16", "e4m3", "e5m2", "fp32", "e2m1", "tf32", "e8m0")
Made = Callable[[], Any]


def _array(*shape: int) -> Any:
    return np.linspace(-2, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def _language_model() -> Any:
    return torch.nn.Sequential(torch.nn.Embedding(8, 8), torch.nn.Linear(8, 8))


def _params() -> Any:
    return [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(2, 2))]


def _histogram() -> Any:
    one = fplab.integers.Histogram(16)
    one.collect(_array(8))
    return one


def _grid() -> Any:
    return fplab.integers.Grid("g", -7, 7)


def _exact() -> Any:
    return fplab.exact.from_float(1.5)


def _product() -> Any:
    return fplab.nn.recipes.mxfp8().forward


VALID: dict[str, tuple[Made, ...]] = {
    "x": (lambda: _array(6), lambda: 0.3, lambda: [1.0, 2.5], lambda: _array(2, 3)),
    "y": (lambda: _array(6),),
    "scheme": (lambda: "mxfp8", lambda: "nvfp4", lambda: fplab.scaled.get_scheme("mxfp4")),
    "a": (lambda: _array(3, 4),),
    "b": (lambda: _array(4, 3),),
    "c": (lambda: None, lambda: _array(3, 3)),
    "codes": (lambda: np.arange(6, dtype=np.uint8),),
    "fmt": tuple(lambda f=f: f for f in FORMATS),
    "src": (lambda: "fp32",),
    "dst": (lambda: "bf16",),
    "rounding": (lambda: "rne", lambda: "rtz"),
    "value": (lambda: "0.1",),
    "name": (lambda: "rne",),
    "bounds.dot.b": (lambda: _array(3, 4),),
    "bounds.dot.c": (lambda: None,),
    "bounds.sums.y": (lambda: None, lambda: _array(6)),
    "bounds.sums.x": (lambda: _array(6),),
    "bounds.gamma.k": (lambda: 64,),
    "bounds.gpu": (lambda: "V100", lambda: "H100"),
    "claims.chapter": (lambda: 3,),
    "claims.statement": (lambda: fplab.words.verbatim("Half of FP32."),),
    "claims.why": (lambda: fplab.words.verbatim("Sixteen bits."),),
    "tapered.fmt": (lambda: "posit16", lambda: "takum8", lambda: fplab.tapered.TABLE[0]),
    "tapered.bits": (lambda: 12,),
    "tapered.exponent_bits": (lambda: None, lambda: 1),
    "n": (lambda: 4,),
    "f": (lambda: sum,),
    "language": (lambda: "en",),
    "low": (lambda: -3,),
    "high": (lambda: 3,),
    "exponent_bits": (lambda: 3,),
    "fraction_bits": (lambda: 4,),
    "source": (lambda: "a test",),
    "model": (_model,),
    "module": (_model,),
    "linear": (lambda: torch.nn.Linear(4, 4),),
    "params": (_params,),
    "plans": (lambda: ((16, fplab.tensorcore.Plan(split_k=2)),),),
    "lr": (lambda: 0.1,),
    "momentum": (lambda: 0.9,),
    "how": (lambda: fplab.integers.symmetric(2.0),),
    "amax": (lambda: 2.0,),
    "w": (lambda: _array(4, 8),),
    "packed": (lambda: np.arange(4, dtype=np.uint8),),
    "code": (lambda: 3,),
    "mode": (lambda: fplab.Rounding.RNE,),
    "negative": (lambda: False,),
    "shape": (lambda: (2, 3),),
    "data": (lambda: _array(64),),
    "seen": (lambda: {},),
    "tensor": (lambda: torch.ones(4),),
    "scale": (lambda: 0.5,),
    "ranks": (lambda: 4,),
    "stages": (lambda: 2,),
    "micro_batches": (lambda: 4,),
    "count": (lambda: 10**9,),
    "capacity": (lambda: 10**9,),
    "num_embeddings": (lambda: 4,),
    "embedding_dim": (lambda: 4,),
    "scaler": (lambda: None,),
    "exact.a": (_exact,),
    "exact.b": (_exact,),
    "exact.c": (_exact,),
    "exact.x": (_exact,),
    "exact.fmt": (lambda: fplab.formats.get("fp16"),),
    "exact.value": (lambda: Fraction(1, 3),),
    "exact.share": (lambda: Fraction(1, 3),),
    "exact.odd": (lambda: True,),
    "exact.word": (lambda: 0,),
    "exact.nan": (lambda: None,),
    "exact.op": (lambda: "lt",),
    "exact.dot.a": (lambda: [_exact()],),
    "exact.dot.b": (lambda: [_exact()],),
    "exact.from_float.x": (lambda: 0.3,),
    "exact.floor_log2.x": (lambda: Fraction(3, 7),),
    "exact.floor_code.x": (lambda: Fraction(3, 7),),
    "exact.round_magnitude.x": (lambda: Fraction(3, 7),),
    "exact.is_tiny.x": (lambda: Fraction(3, 7),),
    "claims.get.name": (lambda: fplab.claims.claims()[0].name,),
    "claims.tried.name": (lambda: fplab.claims.claims()[0].name,),
    "claims.claim": (lambda: fplab.claims.claims()[0],),
    "codebooks.code": (lambda: "nf4", lambda: "dynamic", fplab.codebooks.nf4),
    "codebooks.values": (lambda: np.linspace(-1, 1, 16, dtype=np.float32),),
    "codebooks.block": (lambda: 64,),
    "codebooks.quantized": (lambda: fplab.codebooks.quantize_blockwise(_array(8), "nf4", 64),),
    "course.gpus": (lambda: "H100",),
    "course.name": (lambda: "underflow",),
    "course.snippet.name": (lambda: "fsdp",),
    "exercises.name": (lambda: "largest_e4m3",),
    "exercises.answer": (lambda: 448,),
    "experiments.name": (lambda: "underflow",),
    "formats.given": (lambda: "bf16", lambda: np.float16),
    "sums.SumTree.size": (lambda: 3,),
    "sums.SumTree.nodes": (lambda: ((0, 1), (2, 3)),),
    "formats.policy": (lambda: "inf",),
    "formats.bits": (lambda: 8,),
    "formats.precision": (lambda: 3,),
    "inspection.fmt": (lambda: fplab.formats.get("fp16"),),
    "inspection.x": (_exact,),
    "inspection.short.x": (lambda: Fraction(1, 3),),
    "integers.a": (lambda: np.ones((2, 4), np.int8),),
    "integers.b": (lambda: np.ones((4, 2), np.int8),),
    "integers.codes": (lambda: np.ones((2, 4), np.int8),),
    "integers.zero_point": (lambda: np.zeros((), np.int32),),
    "integers.quantize_groups.zero_point": (lambda: False,),
    "integers.scheme.zero_point": (lambda: False,),
    "integers.grid": (lambda: "int8", _grid),
    "integers.Affine.grid": (_grid,),
    "integers.Affine.scale": (lambda: np.ones((), np.float32),),
    "integers.title": (lambda: "a title",),
    "integers.inputs": (lambda: "row",),
    "integers.weights": (lambda: "column",),
    "integers.x": (lambda: _array(4, 4),),
    "integers.matmul.w": (lambda: _array(4, 4),),
    "integers.n": (lambda: 7,),
    "memory.Transformer.name": (lambda: "t",),
    "memory.c": (lambda: fplab.memory.Transformer("t", 1, 8, 2, 16, 4),),
    "memory.layers": (lambda: 1,),
    "memory.hidden": (lambda: 8,),
    "memory.heads": (lambda: 2,),
    "memory.vocabulary": (lambda: 16,),
    "memory.sequence": (lambda: 4,),
    "memory.model": (lambda: "gpt2", lambda: 10**6, _model),
    "memory.preset.name": (lambda: "gpt2",),
    "memory.inputs": (lambda: torch.ones(1, 4),),
    "memory.Model.layers": (lambda: (),),
    "memory.Model.embedding": (lambda: (fplab.memory.Tensor("w", (2, 2)),),),
    "memory.Model.head": (lambda: (),),
    "nn.x": (lambda: torch.ones(4),),
    "nn.batches": (lambda: [torch.ones(2, 4)],),
    "nn.how": (lambda: fplab.integers.symmetric(2.0),),
    "nn.fake_quantized.how": (fplab.nn.Quantization,),
    "nn.optimizer": (lambda: None,),
    "nn.gpu": (lambda: "H100", lambda: "V100", lambda: "B200"),
    "nn.inputs": (lambda: "fp16", lambda: "bf16"),
    "nn.store": (lambda: "bf16",),
    "nn.weights": (lambda: "bf16",),
    "nn.activations": (lambda: "e4m3",),
    "nn.gradients": (lambda: "e5m2", lambda: "bf16"),
    "nn.weight_gradients": (lambda: "bf16",),
    "nn.precision": (lambda: "fp64", lambda: "double-double"),
    "nn.recipe": (lambda: "mxfp8", lambda: "nvfp4", lambda: "fp8_delayed"),
    "nn.recipes.forward": (_product,),
    "nn.recipes.left": (lambda: fplab.nn.recipes.Operand("mxfp8"),),
    "nn.recipes.right": (lambda: fplab.nn.recipes.Operand("mxfp8"),),
    "nn.recipes.name": (lambda: "mine",),
    "nn.recipes.recipe": (lambda: "mxfp8",),
    "nn.recipes.scope": (lambda: "all",),
    "nn.recipes.high": (lambda: "fp32",),
    "nn.recipes.fp8_format": (lambda: "hybrid",),
    "nn.recipes.attention": (lambda: True,),
    "nn.explain.batch": (lambda: torch.ones(2, 4),),
    "nn.explain.a": (lambda: {"gpu": "H100"},),
    "nn.explain.b": (lambda: {"gpu": "A100"},),
    "nn.explain.output": (lambda: None,),
    "nn.explain.progress": (lambda: str,),
    "nn.capture.out": (lambda: "dump",),
    "nn.rollout_gap.trainer": (_language_model,),
    "nn.rollout_gap.rollout": (lambda: {"gpu": "H100", "inputs": "bf16"},),
    "nn.rollout_gap.prompts": (lambda: torch.arange(8).reshape(1, 8),),
    "nn.rollout_gap.progress": (lambda: str,),
    "nn.survey.batch": (lambda: torch.ones(2, 4),),
    "nn.survey.loss": (lambda: lambda model, batch: model(batch).sum(),),
    "nn.survey.formats": (lambda: ["bf16"],),
    "nn.survey.progress": (lambda: str,),
    "nn.watch.optimizer": (lambda: torch.optim.SGD(_model().parameters(), 0.1),),
    "nn.Recipe.name": (lambda: "mine",),
    "nn.device.x": (lambda: torch.ones(2, 32),),
    "nn.device.a": (lambda: torch.ones(3, 4),),
    "nn.device.b": (lambda: torch.ones(4, 3),),
    "pages.names": (list,),
    "pages.out": (lambda: Path("there"),),
    "pages.folder": (lambda: Path("nowhere"),),
    "parallel.collective": (lambda: fplab.parallel.all_reduce(4),),
    "parallel.buffers": (lambda: np.ones((4, 4), np.float32),),
    "parallel.strategies": (lambda: ("ddp",),),
    "scaled.x": (lambda: _array(2, 32), lambda: _array(32)),
    "scaled.Scheme.name": (lambda: "mine",),
    "scaled.Scheme.element": (lambda: fplab.formats.get("e4m3"),),
    "scaled.Scheme.scale": (lambda: fplab.formats.get("e8m0"),),
    "parallel.values": (lambda: np.ones((4, 4), np.float32),),
    "parallel.elements": (lambda: 4,),
    "parallel.timeline.name": (lambda: "1f1b",),
    "tensorcore.explore.given": (lambda: (_array(3, 4), _array(4, 3)), lambda: lambda model, plan: 0.5),
    "tensorcore.dot.b": (lambda: _array(3, 4),),
    "tensorcore.dot.c": (lambda: None,),
    "tensorcore.attention.q": (lambda: _array(3, 4),),
    "tensorcore.attention.k": (lambda: _array(6, 4),),
    "tensorcore.attention.v": (lambda: _array(6, 2),),
    "tensorcore.trace.a": (lambda: _array(4),),
    "tensorcore.trace.b": (lambda: _array(4),),
    "tensorcore.trace.c": (lambda: 0.0,),
    "tensorcore.ParametricUnit.a": (lambda: "fp16", lambda: "bf16"),
    "tensorcore.ParametricUnit.b": (lambda: "fp16", lambda: "bf16"),
    "tensorcore.ParametricUnit.output": (lambda: "fp32",),
    "tensorcore.gpu": (lambda: "V100", lambda: "H100"),
    "tensorcore.model": (lambda: fplab.tensorcore.get("V100"),),
    "tensorcore.other": (lambda: fplab.tensorcore.get("A100"),),
    "tensorcore.black_box": (lambda: fplab.tensorcore.get("V100"),),
    "training.task": (lambda: "digits",),
    "training.steps": (lambda: 1,),
    "training.data": (fplab.training.digits,),
    "training.examples": (lambda: 8,),
    "training.recipe": (fplab.training.Recipe,),
    "training.model": (fplab.training.digits_net,),
    "training.batches.recipe": (lambda: fplab.training.Recipe(epochs=1, batch=4),),
    "training.Policy.name": (lambda: "mine",),
    "training.Policy.about": (lambda: "a test",),
    "training.Task.name": (lambda: "mine",),
    "training.Task.model": (lambda: fplab.training.tasks.get("digits").model,),
    "training.Task.batches": (lambda: fplab.training.tasks.get("digits").batches,),
    "training.Task.held_out": (lambda: fplab.training.tasks.get("digits").held_out,),
    "training.Task.baseline": (lambda: fplab.training.tasks.get("digits").baseline,),
    "training.Task.about": (lambda: "a test",),
    "training.Task.batch": (lambda: 8,),
    "training.train.recipe": (lambda: fplab.training.Recipe(epochs=1, batch=1500),),
}
ALWAYS = {"training.fit": ("steps",)}


def _from_the_table() -> dict[str, Any]:
    model = fplab.tensorcore.get("V100")
    return {name: getattr(model, name) for name in inspect.signature(type(model)).parameters}


def valid(door: str, name: str) -> tuple[Made, ...]:
    """Values that a parameter of a door may have: its own, its module's, or those of the name."""
    module = door.rpartition(".")[0]
    return VALID.get(f"{door}.{name}") or VALID.get(f"{module}.{name}") or VALID.get(name) or ()


def without_arguments() -> list[str]:
    """Parameters that a call needs, and for which nothing here is valid."""
    return [
        f"{door}: {name}"
        for door, call in doors().items()
        for name, one in parameters_of(call).items()
        if door != "tensorcore.Model" and one.default is inspect.Parameter.empty and not valid(door, name)
    ]


# --- nonsense ------------------------------------------------------------------------------------------------------
class Odd:
    """An object whose methods fail."""

    SAYS = "no text"

    def __repr__(self) -> str:
        raise RuntimeError(self.SAYS)


class Strange(list[Any]):
    """A list of a type of its own."""


def _read_only() -> Any:
    array = _array(6)
    array.flags.writeable = False
    return array


def _forever() -> Iterator[int]:
    yield from range(3)


def _cyclic(kind: Any = list) -> Any:
    """A list or a dictionary that holds itself."""
    one = kind()
    one.update(a=one) if kind is dict else one.append(one)
    return one


def _nested(layout: Any) -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


NONSENSE: tuple[Made, ...] = (
    *(lambda v=v: v for v in (
        None, True, False, "", "x", "fp16", "e4m3", "int8", "H100", "rne", "\0", "é" * 300, b"x", 0, 1, -1, 2, 3, 7, 8,
        16, 255, 256, 2**31, 2**63, 2**64, -(2**63), 10**30, -(10**30), 10**5000, 0.0, -0.0, 0.5, 1.5, -1.5, 1e308,
        5e-324, float("nan"), float("inf"), float("-inf"), 1j, Fraction(1, 3), Decimal("0.1"), Ellipsis, NotImplemented,
        (), (1,), (1, 2), (1, 2, 3), ("x",), ("fp16", "bf16"), (None,), range(3), range(1000), slice(1), int, float,
        str, object, sum, np, torch, Path("x"), Path("/"), np.float32, np.dtype("V8"), np.dtype("f4"), torch.float32,
        torch.bfloat16, torch.device("cpu"), fplab.Rounding.RNE, fplab.Overflow.INF, fplab.Specials.IEEE,
    )),
    *(lambda k=k, v=v: k(v) for k in (np.int8, np.uint8, np.int16, np.int64, np.uint64) for v in (0, 1, 3, 100)),
    *(lambda kind=kind: kind(0.5) for kind in (np.float16, np.float32, np.float64, np.longdouble, np.complex64)),
    lambda: np.bool_(True), lambda: np.str_("fp16"), lambda: np.float32("nan"), lambda: np.datetime64("2020-01-01"),
    object, Odd, Strange, list, dict, set, lambda: [1], lambda: [[1.0], [1.0, 2.0]], lambda: ["a", "b"], lambda: [None],
    lambda: {"a": 1}, lambda: {1: 2}, lambda: [float("nan")] * 4, lambda: [10**30], _forever, lambda: lambda *a, **k: 1,
    _cyclic, lambda: _cyclic(dict), lambda: (_cyclic(),), lambda: [1.0] * 100_000, lambda: "x" * 100_000,
    lambda: _array(1000, 1000), lambda: torch.ones(1000, 1000), lambda: [_array(99, 99)] * 3, lambda: range(10**12),
    lambda: _nested(torch.strided), lambda: _nested(torch.jagged), lambda: torch.nn.Parameter(torch.ones(2, 2)),
    lambda: "\x1b[2J", lambda: Path("/dev/null/x"), lambda: 99_999_999_999, lambda: np.zeros((2**40, 0)),
    lambda: [[]], lambda: [[[1.0]]], lambda: [True, False], lambda: [1, "a"], lambda: memoryview(b"abc"),
    *(lambda t=t: _array(2, 3).astype(t) for t in ("f2", "f4", "f8", ">f4", "i1", "u1", "i4", "u8", "?", "c8", "g")),
    *(lambda s=s: _array(*s) for s in ((0,), (1,), (6,), (3, 3), (2, 2, 2), (0, 3), (3, 0), (1,) * 8, (4, 4), (5,))),
    lambda: np.array(1.5), lambda: np.array("x"), lambda: np.array(None), lambda: np.array([None, 1]),
    lambda: np.array(["a", "b"]), lambda: np.array([1, 2], "M8[s]"), lambda: np.zeros(3, "V4"), _read_only,
    lambda: np.zeros(2, [("a", "f4")]), lambda: _array(12)[::2], lambda: _array(4, 4).T, lambda: _array(6)[::-1],
    lambda: np.ma.masked_array(_array(3), [0, 1, 0]), lambda: np.full(4, np.nan, np.float32),
    lambda: np.full(4, np.inf),
    lambda: np.broadcast_to(np.float32(1), (4, 4)), lambda: np.matrix([[1.0, 2.0]]), lambda: np.full((3, 3), 3e38),
    lambda: torch.ones(4), lambda: torch.ones(4, requires_grad=True), lambda: torch.ones(2, 2, dtype=torch.bfloat16),
    lambda: torch.ones(3, dtype=torch.int64), lambda: torch.ones(0), lambda: torch.tensor(1.5),
    lambda: torch.ones(2, 2).to_sparse(), lambda: torch.ones(3, device="meta"),
    lambda: torch.ones(3, dtype=torch.complex64),
    lambda: torch.ones(3, dtype=torch.bool), lambda: torch.ones(2).to(torch.float8_e4m3fn),
    lambda: torch.nn.Linear(2, 2),
    lambda: torch.nn.Linear(2, 2, device="meta"), lambda: torch.nn.ReLU(), lambda: torch.nn.Conv2d(1, 1, 1),
    _model, _params, lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1), _grid, _histogram, _exact,
    lambda: fplab.formats.get("fp16"), lambda: fplab.tensorcore.get("V100"), fplab.codebooks.nf4,
    lambda: fplab.integers.symmetric(1.0), lambda: fplab.codebooks.RULES, fplab.tensorcore.Plan,
    lambda: fplab.training.AmaxScaling(), lambda: fplab.training.StaticScaler(), fplab.parallel.Wire,
    lambda: fplab.memory.Transformer("t", 1, 8, 2, 16, 4), lambda: fplab.memory.Tensor("w", (2, 3)),
)  # fmt: skip

# --- calls ---------------------------------------------------------------------------------------------------------
KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@functools.cache
def parameters_of(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A call's parameters by name, and the fields of a recipe where its maker takes them as keywords."""
    own = inspect.signature(call).parameters
    given = {name: one for name, one in own.items() if one.kind not in KINDS}
    return inspect.signature(fplab.nn.Recipe).parameters | given if "fields" in own else given


def arguments(door: str, call: Callable[..., Any], draw: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Arguments by name, and which of them are nonsense."""
    parameters = parameters_of(call)
    required = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]
    if door == "tensorcore.Model":
        given = _from_the_table()
    else:
        given = {name: draw.choice(valid(door, name))() for name in required}
        given |= {name: draw.choice(valid(door, name))() for name in ALWAYS.get(door, ())}
        for name in parameters:
            if name not in given and draw.random() < 0.15 and (made := valid(door, name)):
                given[name] = draw.choice(made)()
    wrong = draw.sample(list(parameters), min(len(parameters), 1 + (draw.random() < SEVERAL)))
    if door == "training.fit":  # it would train for long
        wrong = [name for name in wrong if name != "steps"]
    given |= {name: draw.choice(NONSENSE)() for name in wrong}
    return given, wrong


def train(given: dict[str, Any]) -> None:
    """Two steps of a tiny net: the one that was given, where it takes four features, with its own optimizer."""
    model, optimizer = given.get("model"), given.get("optimizer")
    if not isinstance(model, torch.nn.Sequential):
        model = _model()
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def use(result: Any, given: dict[str, Any], draw: random.Random) -> str:
    """What one does with a result: an optimizer makes a step, a generator goes on, a net is trained within a context.

    Everything is shown. The result says whether a net was trained.
    """
    if isinstance(result, fplab.nn.Recipe) and draw.random() < EMULATED:
        result = fplab.nn.emulate("B200", recipe=result)
    trains = isinstance(result, contextlib.AbstractContextManager) and not isinstance(result, io.IOBase)
    if isinstance(result, torch.optim.Optimizer):
        for group in result.param_groups:
            for param in group["params"]:
                param.grad = torch.ones_like(param)
        result.step()
    elif trains:
        with result as entered:
            train(given)
        show(entered)
        if callable(getattr(entered, "report", None)):
            show(entered.report())
    elif isinstance(result, Iterator):
        next(result, None)
    show(result)
    return "nets trained within contexts" if trains else ""


def show(result: Any) -> None:
    """The representation, which is not longer than what was given."""
    try:
        if (length := len(repr(result))) > MOST_SHOWN:
            raise AssertionError(f"its representation has {length:,} characters")
    except ValueError:  # of integers with more than 4,300 digits, which Python does not print
        pass
    except RuntimeError as error:  # of what was given, which a result may hold
        if str(error) != Odd.SAYS:
            raise


def users_own(call: Callable[..., Any], given: dict[str, Any], wrong: list[str]) -> bool:
    """Whether a function or module was given where one is asked for: what it raises is its own."""
    _, kinds = _annotated(inspect.unwrap(call.__init__ if isinstance(call, type) else call))
    return any(callable(given[name]) and re.search(r"Callable|Module", str(kinds.get(name))) for name in wrong) or bool(
        {"batches", "batch"} & {*wrong} and "model" in given  # what a module says of another shape
    )


def refused_well(error: Exception, names: list[str]) -> bool:
    """Whether an error is one that a user can act on."""
    if isinstance(error, fplab.LabError):
        text = str(error)
        if size := re.search(r"not enough memory for an array of ([\d.]+) (\w+)", text):  # one as large was asked for
            return float(size[1]) * UNITS.get(size[2], 0) >= MEMORY
        return 0 < len(text) < MOST_SAID and "not enough memory" not in text
    if not isinstance(error, TypeError):
        return False
    text = str(error)
    binding = r"missing|unexpected keyword|positional argument|required keyword|multiple values"
    return bool(re.search(binding, text)) or (any(name in text for name in names) and text.endswith("."))


def where(error: Exception) -> str:
    """The last line of the package on the way to an error."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/fplab/" in f.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def shown(value: Any) -> str:
    """An argument, briefly."""
    try:
        return f"{type(value).__name__} {value!r}"[:70].replace("\n", " ")
    except Exception:
        return type(value).__name__


def run(size: int, seed: int) -> Counts:
    """``size`` calls; a fault for each kind of bare error, with its first call and how often it came."""
    counts, first = Counts(faults=without_arguments()), 0
    if counts.faults:
        return counts
    faults: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as made:
        state = np.memmap(Path(made) / "state", np.int64, "w+", shape=1 + len(TRIED))
        while first < size:
            ended, lines = _process(first, size, seed, Path(made), state)
            for key, text in map(json.loads, lines):
                faults.setdefault(key, [text, 0])[1] += 1
            first = int(state[0])
            if ended:
                faults[str(first)] = [f"call {first} of {door_of(first, seed)[1]} {ended}", 1]
                first += 1
        counts.tried = {name: int(n) for name, n in zip(TRIED, state[1:], strict=True)}
    counts.faults = [f"{text} ({times} times)" for text, times in faults.values()]
    return counts


TRIED = (
    "calls",
    "calls of rare doors",
    "calls of slow doors",
    "calls that gave a result",
    "nets trained within contexts",
)
ROOT = Path(__file__).parent.parent.parent


def _process(first: int, last: int, seed: int, folder: Path, state: Any) -> tuple[str, list[str]]:
    """Another process makes the calls from ``first`` on: how it ended, empty where it made all, and its faults."""
    words = [sys.executable, "-m", "tests.withstand.fuzz", str(first), str(last), str(seed), str(folder / "state")]
    with (folder / "faults").open("w+") as out, (folder / "errors").open("w+") as errors:
        running = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=errors)
        ended, number, since = "", -1, time.monotonic()
        while running.poll() is None:
            time.sleep(0.2)
            if number != state[0]:
                number, since = int(state[0]), time.monotonic()
            elif time.monotonic() - since > 2 * LIMIT:
                ended = f"does not end in {2 * LIMIT} s"
                running.kill()
        out.seek(0)
        errors.seek(0)
        if running.returncode and not ended:
            ended = f"ends the process with {running.returncode}: {errors.read()[-300:]!r}"
        return ended, out.read().splitlines()


@functools.cache
def _kinds() -> dict[str, list[str]]:
    return {"rare": sorted(RARE), "slow": sorted(SLOW), "": [name for name in doors() if name not in RARE | SLOW]}


def door_of(number: int, seed: int) -> tuple[str, str, random.Random]:
    """Of a call by its number: the kind of its door, the door, and what draws the rest."""
    draw = random.Random(f"{seed} {number}")
    kind = next((kind for kind, share in SHARES.items() if draw.random() < share), "")
    return kind, draw.choice(_kinds()[kind]), draw


def main(first: int, last: int, seed: int, state: Any) -> None:
    """Make some of the calls; a line of JSON for each fault. ``state``: the number of the call, and ``TRIED``."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _ends)
    before, opened, say = fplab.lang(), doors(), sys.stdout
    with tempfile.TemporaryDirectory() as own, contextlib.chdir(own), warnings.catch_warnings():
        os.environ["FPLAB_PROGRESS_DIR"] = own
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(io.StringIO()):
            for number in range(first, last):
                state[0] = number
                kind, door, draw = door_of(number, seed)
                tried, fault = _call(door, opened[door], draw)
                for name in [f"calls {kind and f'of {kind} doors'}".rstrip(), *tried]:
                    state[1 + TRIED.index(name)] += 1
                if fault:
                    print(json.dumps([fault[0], f"call {number}, {fault[1]}"]), file=say, flush=True)
                if door in ("lang", "set_num_threads"):
                    fplab.lang(before)
                    fplab.set_num_threads(None)
        state[0] = last


class EndlessError(BaseException):
    """A call does not end; no ``except Exception`` on the way takes it for its own."""


def _ends(*_: Any) -> None:
    raise EndlessError


def _call(door: str, call: Callable[..., Any], draw: random.Random) -> tuple[list[str], tuple[str, str] | None]:
    """One call: which of ``TRIED`` it was, and its fault, by what tells it from others, with its text."""
    given, wrong = arguments(door, call, draw)
    signal.alarm(LIMIT)
    try:
        with np.errstate(all="ignore"):
            trained = use(call(**given), given, draw)
        signal.alarm(0)
        return ["calls that gave a result", *[trained] * bool(trained)], None
    except (Exception, EndlessError) as error:
        signal.alarm(0)
        if refused_well(error, list(given)) or users_own(call, given, wrong):
            return [], None
        key = (door, type(error).__name__, where(error))
        text = ", ".join(f"{name}={shown(given[name])}" for name in wrong)
        said = str(error)
        return [], (
            " ".join(key),
            f"{door}({text}): {type(error).__name__} of {len(said):,} characters at {key[2]}: {said[:160]!r}",
        )


if __name__ == "__main__":
    _given = [int(number) for number in sys.argv[1:4]]
    _file = {"filename": sys.argv[4], "mode": "r+"} if len(sys.argv) > 4 else None
    main(*_given, np.memmap(dtype=np.int64, **_file) if _file else np.zeros(1 + len(TRIED), np.int64))
