"""Writes what a torch program computes into a folder: one file that needs torch and Python alone, to be copied.

``with Capture(model, "dump"): model(x)`` notes every operation: its name, module, numbers and tensors, and of each
tensor dtype, shape, strides, a digest of its bits and some rows; what comes from outside (weights, inputs, what other
ranks or a random generator gave) whole, so that the program can be computed again. See :func:`fplab.nn.capture`.

``rank-N.json`` holds "format", "version", "state" (of torch and the machine: flags, seeds, rank), "modules" (path:
class and numbers), "tensors" and "operations", each in the order in which they came, "output" (the tensor that the
outermost module gave last), and "cut" and "error" where the recording was. A tensor: "dtype", "shape", "stride",
"digest", "kept" ("whole", "rows", "none"), "rows" (the rows kept, of the tensor as (n, last dimension)), "name" (of a
parameter or buffer), "same" (the number of the tensor that an operation, "by", changed in place). An operation:
"name", "module", "call" (of the module), "args", "kwargs", "results" and "changed" (numbers of tensors); in arguments
{"t": n} is a tensor, {"f": "0x1.8p+1"} a float.
The step of an optimizer is a module, whose "optimizer" has its hyperparameters.
``rank-N.safetensors`` holds what is kept, under the tensors' numbers. A call of a module that ``torch.compile`` gave is
one operation, "torch.compile", of its parameters, buffers and inputs; it runs as it would, and its results are kept,
what it stores for its backward pass among them, which is one, "torch.compile backward", of these and of gradients.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import warnings
import weakref
import zlib
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.optim import optimizer as steps
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

FORMAT, VERSION = "fplab dump", 1
WHAT = ("digests", "rows", "all")
SAMPLE = 4096  # elements of a tensor at which it is kept whole, and of its rows in a larger one
CHUNK = 1 << 18  # words of 32 bits that one number digests
SAFE = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
        "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2"}  # fmt: skip
SETS_BITS = ("CUBLAS", "NVIDIA_TF32", "ATEN_", "ONEDNN", "MKL_CBWR")
OUTSIDE = re.compile(
    r"c10d|rand|normal|bernoulli|dropout|multinomial|empty|exponential|uniform|cauchy|geometric"
)  # no result of operands alone


COMPILED = "torch.compile"  # the operation of a compiled module


class Capture(TorchDispatchMode):
    """Writes a dump of what runs within the block; ``summary`` then says how much.

    ``what``: of results "digests" alone, "rows" too, or "all" of them. ``most``: bytes of tensors and ``operations``:
    so many at most; what comes later keeps digests, or is left out.
    """

    def __init__(
        self, model: torch.nn.Module | None, out: str | os.PathLike[str], what: str = "rows", *,
        most: int = 1 << 28, operations: int = 20_000,
    ) -> None:  # fmt: skip
        super().__init__()
        if what not in WHAT:
            raise ValueError(f"what={what!r} is not possible; allowed: {', '.join(WHAT)}.")
        self.model, self.out, self.what, self.most, self.limit = model, Path(out), what, most, operations
        self._names, self._paths = dict[int, str](), dict[Any, str]()
        if model is not None:
            self._name(model, "")
        self._stack, self._calls, self._modules = [""], dict[str, int](), dict[str, Any]()
        self._known: dict[int, tuple[Any, int, int]] = {}  # id -> reference, number, last write before
        self._windows = dict[int, dict[Any, tuple[Any, int, int]]]()  # storage -> windows on it -> as above
        self._writers: dict[int, int] = {}  # storage -> the operation that wrote to it last
        self.tensors: list[dict[str, Any]] = []
        self.operations: list[dict[str, Any]] = []
        self._bytes: list[tuple[str, str, list[int], bytes]] = []
        self.output = -1
        self._hooks: tuple[Any, ...] = ()
        self._stance: Any = None
        self._quiet = warnings.catch_warnings()
        self._open = False
        self._size, self._cut, self._plain = 0, False, torch.Tensor.__torch_dispatch__

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would load its compiler for every block

    def __enter__(self) -> Capture:
        self.out.mkdir(parents=True, exist_ok=True)
        self._state = _state()
        self._quiet.__enter__()
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
        self._follow()
        super().__enter__()
        self._open = True
        return self

    def _follow(self) -> None:
        """Follow modules, and refuse what is compiled without one."""
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        before = steps.register_optimizer_step_pre_hook(self._step)
        stepped = steps.register_optimizer_step_post_hook(self._stepped)
        self._hooks = (hooks.register_module_forward_pre_hook(self._enter), after, before, stepped)
        if "torch._dynamo" in sys.modules:  # else nothing is compiled yet
            self._stance = torch.compiler.set_stance("default", force_backend=_Refusing())
            self._stance.__enter__()

    def _unfollow(self) -> None:
        """Follow modules no more."""
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        super().__exit__(kind, error, at)
        self._open = False
        self._unfollow()
        self._quiet.__exit__(kind, error, at)
        self._write("" if error is None else f"{kind.__name__}: {error}")
        self._known.clear()

    @property
    def summary(self) -> str:
        """How much was noted."""
        return f"{len(self.operations):,} operations, {len(self.tensors):,} tensors, {self._size:,} bytes of them kept"

    def _name(self, model: Any, root: str) -> None:
        """Name a model's parts, parameters and buffers by their paths."""
        self._paths |= {m: _plain(path) or root for path, m in model.named_modules()}
        self._names |= {id(x): _plain(name) for name, x in (*model.named_parameters(), *model.named_buffers())}

    def _enter(self, module: Any, args: Any) -> None:
        if type(module).__name__ == "OptimizedModule":
            self._run_compiled(module)
            return
        if len(self._stack) == 1 and module not in self._paths:
            self._name(module, f"{type(module).__name__}")
        path = self._paths.setdefault(module, f"{type(module).__name__} {len(self._paths)}")
        self._calls[path] = self._calls.get(path, -1) + 1
        if path not in self._modules:
            numbers = {k: v for k, v in vars(module).items() if isinstance(v, (bool, int, str)) and k[0] != "_"}
            floats = {k: _written(v) for k, v in vars(module).items() if isinstance(v, float) and k[0] != "_"}
            self._modules[path] = {"class": type(module).__name__, **numbers, **floats}
        self._stack.append(path)

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step is a module of its class, with its numbers: of each name one, where all groups agree."""
        path, groups = type(optimizer).__name__, optimizer.param_groups
        given = {k: [group.get(k) for group in groups] for k in groups[0] if k != "params"}
        numbers = {k: each[0] if each[1:] == each[:-1] else each for k, each in given.items()}
        self._modules[path] = {"class": path, "optimizer": {k: str(x) for k, x in numbers.items()}}
        self._stack.append(path)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stack.pop()

    def _run_compiled(self, module: Any) -> None:
        """Look away while a compiled module runs, then note it as one operation."""
        if module._orig_mod not in self._paths:
            self._name(module._orig_mod, type(module._orig_mod).__name__)
        path = self._paths[module._orig_mod]
        self._unfollow()
        modes = _disable_current_modes()
        modes.__enter__()

        def note(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            hook.remove()
            given = [*module.parameters(), *module.buffers(), *tree_leaves((args, kwargs))]
            tensors = [x for x in given if isinstance(x, torch.Tensor)]
            self._calls[path] = self._calls.get(path, -1) + 1
            number = {"name": COMPILED, "module": path, "call": self._calls[path], "kwargs": {}, "changed": []}
            number["args"] = [self._argument(x) for x in tensors]
            self.operations.append(number)
            results = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
            stored = self._await_backward(results, tensors, path)
            number["results"] = [self._number(x, False, True, True) for x in (*stored, *results)]
            if len(self._stack) == 1:
                self.gave(output)
            modes.__exit__(None, None, None)
            self._follow()

        hook = module.register_forward_hook(note, with_kwargs=True, always_call=True)

    def _await_backward(self, results: list[torch.Tensor], given: list[torch.Tensor], path: str) -> list[torch.Tensor]:
        """Note what a compiled module's backward pass gives as one operation, too; what is stored for it."""
        stored = list[torch.Tensor]()
        waiting = [x.grad_fn for x in results]
        seen = {None, *(x.grad_fn for x in given)}
        while waiting:
            node: Any = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            waiting += [of for of, _ in node.next_functions]
            if not node.name().startswith("CompiledFunctionBackward"):
                continue
            modes: list[Any] = []
            saved = [x for x in node.saved_tensors if isinstance(x, torch.Tensor)]
            stored += [x for x in saved if self._seen(x) is None and not any(x is y for y in (*stored, *results))]

            def before(gradients: Any, modes: list[Any] = modes) -> None:
                modes.append(_disable_current_modes())
                modes[-1].__enter__()

            def after(
                results: Any, gradients: Any, modes: list[Any] = modes, saved: list[torch.Tensor] = saved
            ) -> None:
                if self._open:
                    tensors = [x for x in (*saved, *gradients) if isinstance(x, torch.Tensor)]
                    note = {"name": f"{COMPILED} backward", "module": path, "call": self._calls[path], "kwargs": {}}
                    note |= {"args": [self._argument(x) for x in tensors], "changed": []}
                    self.operations.append(note)
                    note["results"] = [self._number(x, False, True, True) if x is not None else -1 for x in results]
                modes.pop().__exit__(None, None, None)

            node.register_prehook(before)
            node.register_hook(after)
        return stored

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        if len(self._stack) > 1:
            self._stack.pop()
        if len(self._stack) == 1:
            self.gave(output)

    def gave(self, output: Any) -> None:
        """What the program gave, of which the first tensor of floating-point numbers is to be explained."""
        for x in tree_leaves(output):
            known = self._seen(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else None
            if known is not None:
                self.output = known[1]
                break

    def _seen(self, x: torch.Tensor) -> tuple[Any, int, int] | None:
        """What is known of a tensor, or of the same window on memory that was not freed since: autograd's views."""
        known = self._known.get(id(x))
        if known is not None and known[0]() is x:
            return known
        windows = self._windows.get(_storage(x), {}) if _storage(x) else {}
        return windows.get(_place(x)) if any(one[0]() is not None for one in windows.values()) else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(t.__name__ == "FakeTensor" for t in types):
            return func(*args, **kwargs)
        if any(t.__torch_dispatch__ is not self._plain for t in types):
            return NotImplemented  # a tensor of another kind takes itself apart first
        if func.namespace == "profiler" or any(map(self._imagined, tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        if self._cut or len(self.operations) >= self.limit:
            self._cut = True
            return func(*args, **kwargs)
        path = self._stack[-1]
        note: dict[str, Any] = {"name": str(func), "module": path, "call": self._calls.get(path, 0)}
        note["args"], note["kwargs"] = (
            [self._argument(x) for x in args],
            {k: self._argument(x) for k, x in kwargs.items()},
        )
        result = func(*args, **kwargs)
        if any(map(self._imagined, tree_leaves(result))):
            return result
        number = len(self.operations)
        self.operations.append(note)
        written = []
        for argument, x in [
            *zip(func._schema.arguments, args, strict=False),
            *((a, kwargs.get(a.name)) for a in func._schema.arguments),
        ]:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += [one for one in tree_leaves(x) if isinstance(one, torch.Tensor)]
        if "batch_norm." in note["name"] and "backward" not in note["name"]:
            written += [x for x in args[3:5] if isinstance(x, torch.Tensor)]  # statistics: the schema does not say so
        for x in written:
            self._writers[_storage(x)] = number
        outside = OUTSIDE.search(note["name"]) is not None
        note["changed"] = [self._number(x, whole=outside, changed=True) for x in written]
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        ids = {id(x) for x in written}
        note["results"] = [
            self._number(x, views, outside, id(x) not in ids) if isinstance(x, torch.Tensor) else -1
            for x in tree_leaves(result)
        ]
        return result

    def _imagined(self, x: Any) -> bool:
        """Whether something is a tensor without values, by which torch finds shapes."""
        return isinstance(x, torch.Tensor) and (x.is_meta or type(x).__torch_dispatch__ is not self._plain)

    def _argument(self, x: Any) -> Any:
        """What an operation is given, as JSON holds it."""
        if isinstance(x, torch.Tensor):
            return {"t": self._number(x, whole=True)}
        if isinstance(x, (list, tuple)):
            return [self._argument(one) for one in x]
        return _written(x)

    def _number(
        self, x: torch.Tensor, view: bool = False, whole: bool = False, new: bool = False, changed: bool = False
    ) -> int:
        """The number of a tensor as it is now, which is noted where it is new or has changed.

        ``view``: another window on what is known, without a digest; ``whole``: kept whole if it is new.
        """
        storage, known = _storage(x), None if new else self._seen(x)
        version = self._writers.get(storage, -1)
        if known is not None and known[2] == version:
            return known[1]
        note: dict[str, Any] = {"dtype": str(x.dtype)[6:], "shape": list(x.shape)}
        note["stride"] = list(x.stride()) if x.layout == torch.strided else None
        if known is not None:
            note["same"], note["by"], whole = known[1], version, whole and changed
        elif id(x) in self._names:
            note["name"] = self._names[id(x)]
        number = len(self.tensors)
        self.tensors.append(note)
        if (new and not view) or not any(one[0]() is not None for one in self._windows.get(storage, {}).values()):
            self._windows[storage] = {}  # memory that is new, or was freed since
        self._known[id(x)] = weakref.ref(x), number, version
        if storage:
            self._windows[storage][_place(x)] = self._known[id(x)]
        note["kept"] = "none"
        if not view and x.layout == torch.strided and x.device.type != "meta":
            self._keep(x.detach(), number, note, whole or self.what == "all")
        return number

    def _keep(self, x: torch.Tensor, number: int, note: dict[str, Any], whole: bool) -> None:
        """A tensor's digest, and of its values what is asked for and there is room for."""
        with torch._C._DisableTorchDispatch():
            x = x.resolve_conj().resolve_neg().contiguous()
            sample, last = x, max(x.shape[-1] if x.dim() else 1, 1)
            if x.numel() > SAMPLE:
                table = x.view(-1, last)
                count = max(1, min(SAMPLE // last, len(table)))
                note["rows"] = [i * (len(table) - 1) // max(count - 1, 1) for i in range(count)]
                sample = table[torch.tensor(note["rows"], device=x.device)]
            raw = _raw(sample)
            note["digest"] = f"{digest(x):016x}{zlib.crc32(raw):08x}"
            if whole and x.numel() > SAMPLE and self._size + x.nbytes <= self.most:
                raw, sample = _raw(x), x
                note.pop("rows")
            if (whole or self.what != "digests") and note["dtype"] in SAFE and self._size + len(raw) <= self.most:
                note["kept"] = "rows" if "rows" in note else "whole"
                self._size += len(raw)
                self._bytes.append((str(number), SAFE[note["dtype"]], list(sample.shape), raw))
            else:
                note.pop("rows", None)

    def _write(self, error: str) -> None:
        rank = self._state["rank"]
        manifest = {"format": FORMAT, "version": VERSION, "state": self._state, "modules": self._modules,
                    "cut": self._cut, "error": error, "output": self.output, "tensors": self.tensors,
                    "operations": self.operations}  # fmt: skip
        header, at = dict[str, Any](), 0
        for name, dtype, shape, raw in self._bytes:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
            at += len(raw)
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with open(self.out / f"rank-{rank}.safetensors", "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            file.writelines(raw for *_, raw in self._bytes)
        (self.out / f"rank-{rank}.json").write_text(json.dumps(manifest, separators=(",", ":")), encoding="utf-8")


class _Refusing:
    """In place of a compiler; asked for its name at every call of a compiled function."""

    @property
    def compiler_name(self) -> str:
        raise RuntimeError("torch.compile joins operations, which cannot be noted then; capture the model before it.")

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self.compiler_name


_weights: dict[Any, torch.Tensor] = {}


def digest(x: torch.Tensor) -> int:
    """64 bits of a contiguous tensor's bytes: of each 2**18 words the sum of products with fixed numbers, mod 2**32."""
    words = x.reshape(-1).view(torch.uint8)
    if tail := -words.numel() % 4:
        words = torch.cat([words, words.new_zeros(tail)])
    if words.storage_offset() % 4:
        words = words.clone()
    words = words.view(torch.int32)
    if x.device not in _weights:
        w = torch.arange(1, CHUNK + 1, dtype=torch.int64)
        for factor, shift in ((0x9E3779B1, 15), (0x85EBCA77, 13), (0xC2B2AE3D, 16)):
            w = w * factor & 0xFFFFFFFF
            w = w ^ w >> shift
        _weights[x.device] = (w | 1).to(torch.int32).to(x.device)
    weights = _weights[x.device]
    result = x.numel()
    for part in words.split(CHUNK):
        one = weights[: len(part)]
        dot = torch.dot(part, one) if x.device.type == "cpu" else (part.long() * one).sum()
        result = (result * 0x100000001B3 + (int(dot) & 0xFFFFFFFF)) & 0xFFFFFFFFFFFFFFFF
    return result


def _plain(name: str) -> str:
    """A name without what torch.compile puts before it."""
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod")


def _raw(x: torch.Tensor) -> bytes:
    return x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata if x.layout == torch.strided else 0


def _place(x: torch.Tensor) -> Any:
    """Where in its storage a tensor is."""
    return x.dtype, x.shape, x.stride(), x.storage_offset()


def _written(x: Any) -> Any:
    """A value of an argument; what JSON cannot hold by its kind and name."""
    if x is None or isinstance(x, (bool, str)):
        return x
    if isinstance(x, int):
        return int(x)
    if isinstance(x, float):
        return {"f": float(x).hex()}
    for kind in ("dtype", "layout", "memory_format"):
        if isinstance(x, getattr(torch, kind)):
            return {kind: str(x).removeprefix("torch.")}
    return {"device": str(x)} if isinstance(x, torch.device) else {"opaque": type(x).__name__}


def _state() -> dict[str, Any]:
    """What decides on bits besides operands: versions, flags, seeds, machine and rank."""
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    matmul, cudnn, gpu = torch.backends.cuda.matmul, torch.backends.cudnn, torch.cuda.is_available()
    return {
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if gpu else platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads(),
        "seed": torch.initial_seed(), "rank": torch.distributed.get_rank() if ranks else 0,
        "ranks": torch.distributed.get_world_size() if ranks else 1, "dtype": str(torch.get_default_dtype())[6:],
        "float32_matmul_precision": torch.get_float32_matmul_precision(), "cudnn_allow_tf32": cudnn.allow_tf32,
        "allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "cudnn_benchmark": cudnn.benchmark, "mkldnn": torch.backends.mkldnn.enabled,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": str(torch.get_autocast_dtype("cpu"))[6:] if torch.is_autocast_enabled("cpu") else "",
        "environment": {k: v for k, v in os.environ.items() if k.startswith(SETS_BITS)},
    }  # fmt: skip
