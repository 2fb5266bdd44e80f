"""The CUDA kernels without a GPU: every one compiles, holds its instruction, and is launched as the driver asks.

What a GPU would do with a launch is done in software here, on the very pointers that the launch was given.
"""

import contextlib
import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fplab.errors import LabError
from fplab.hardware import cuda, instruction_cases, instructions, nvrtc, operands, scalars, software, standin, tiles
from fplab.hardware.instructions import SCALARS, TABLE, Instruction, Scalar
from fplab.hardware.tiles import CODES

ARCHITECTURES = [(7, 5), (8, 0), (8, 9), (9, 0)]
HARMLESS = "(C7519)"  # ptxas says that it inserts what wgmma needs before registers are read
BY_NAME = {one.name: one for one in (*TABLE, *SCALARS)}


@pytest.fixture(scope="module")
def compiler() -> nvrtc.NVRTC:
    try:
        return nvrtc.load(13)
    except LabError as error:
        if "NVRTC is not here" not in str(error):
            raise
        pytest.skip(f"no kernel is compiled here: {error}")


# --- compiling ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("capability", ARCHITECTURES, ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_every_kernel_compiles_where_its_instruction_exists(compiler: nvrtc.NVRTC, capability: tuple[int, int]) -> None:
    found = [one for one in (*TABLE, *SCALARS) if one.on(capability)]
    assert len(found) == {(7, 5): 22, (8, 0): 35, (8, 9): 51, (9, 0): 72}[capability]
    for one in found:
        kernel = one.kernel
        binary = compiler.compile(kernel.source, f"sm_{capability[0]}{capability[1]}{kernel.suffix}", kernel.name)
        assert f"{kernel.ptx} " in binary.ptx, one.name
        assert f".entry {kernel.entry}(" in binary.ptx
        assert binary.cubin[:4] == b"\x7fELF"
        assert all(HARMLESS in line for line in binary.log.splitlines()), binary.log


def test_wgmma_needs_sm_90a(compiler: nvrtc.NVRTC) -> None:
    kernel = instructions.get("wgmma.m64n8k16 fp16->fp32").kernel
    assert kernel.suffix == "a"
    with pytest.raises(LabError, match=r"cannot compile wgmma.m64n8k16 fp16->fp32 for sm_90: .*sm_90"):
        compiler.compile(kernel.source, "sm_90", kernel.name)


def test_what_does_not_compile_is_an_error_with_the_log(compiler: nvrtc.NVRTC) -> None:
    with pytest.raises(LabError, match=r'(?s)cannot compile bad.cu for sm_80: .*identifier "x" is undefined'):
        compiler.compile("__global__ void f() { x = 1; }", "sm_80", "bad.cu")
    refuses(lambda: compiler.compile("", "sm_12"), r"cannot compile kernel.cu for sm_12: NVRTC_ERROR_INVALID_OPTION")
    assert compiler.version >= (12, 0)
    assert {80, 89, 90} <= set(compiler.architectures)


def test_a_missing_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(nvrtc.PATH_VARIABLE, str(tmp_path / "libnvrtc.so.99"))
    nvrtc.load.cache_clear()
    refuses(lambda: nvrtc.compile("", "sm_80"), r"NVRTC is not here: pip install nvidia-cuda-nvrtc.*libnvrtc.so.99")
    nvrtc.load.cache_clear()


def test_the_library_of_torchs_own_cuda_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, name in (("cu13/lib", "libnvrtc.so.13"), ("cuda_nvrtc/lib", "libnvrtc.so.12")):
        (tmp_path / folder).mkdir(parents=True)
        for file in (name, name.replace("nvrtc", "nvrtc-builtins"), name.replace("nvrtc", "nvrtc.alt")):
            (tmp_path / folder / file).touch()
    specs = {"nvidia": SimpleNamespace(submodule_search_locations=[str(tmp_path)]), "torch": None}
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", specs.get)
    monkeypatch.setattr(nvrtc.ctypes.util, "find_library", lambda name: None)
    found = {major: [Path(p).name for p in nvrtc.candidates(major) if str(tmp_path) in p] for major in (12, 13)}
    assert found == {12: ["libnvrtc.so.12", "libnvrtc.so.13"], 13: ["libnvrtc.so.13", "libnvrtc.so.12"]}


def test_names_are_unique_and_unknown_ones_get_a_suggestion() -> None:
    assert len(BY_NAME) == len(TABLE) + len(SCALARS)
    refuses(lambda: instructions.get("mma.m16n8k16 fp16->fp31"), r"Did you mean 'mma.m16n8k16 fp16->fp32'")


# --- the layout of fragments ---------------------------------------------------------------------------------------
def ptx_isa(k: int, bits: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Row and column of element i of A, and of B, as the PTX ISA states them: g is lane // 4, t is lane % 4."""
    return {
        (8, 16): ([("g if i < 2 else g + 8", "t * 2 + (i & 1)")], [("t * 2 + i", "g")]),
        (16, 16): (
            [("g if i < 2 or 4 <= i < 6 else g + 8", "t * 2 + (i & 1) + (8 if i >= 4 else 0)")],
            [("t * 2 + (i & 1) + (8 if i >= 2 else 0)", "g")],
        ),
        (4, 32): ([("g if i == 0 else g + 8", "t")], [("t", "g")]),
        (8, 32): ([("g if i in (0, 2) else g + 8", "t if i < 2 else t + 4")], [("t if i == 0 else t + 4", "g")]),
        (16, 8): ([("g if i < 4 else g + 8", "t * 4 + (i & 3)")], [("t * 4 + (i & 3)", "g")]),
        (32, 8): (
            [("g if i < 4 or 8 <= i < 12 else g + 8", "t * 4 + (i & 3) + (16 if i >= 8 else 0)")],
            [("t * 4 + (i & 3) + (16 if i >= 4 else 0)", "g")],
        ),
    }[k, bits]  # fmt: skip


@pytest.mark.parametrize(("k", "bits"), [(8, 16), (16, 16), (4, 32), (8, 32), (16, 8), (32, 8)])
def test_one_formula_in_words_is_every_layout_of_the_ptx_isa(k: int, bits: int) -> None:
    """mma.cu loads word t + 4*(r/2) of row g + 8*(r%2) into register r of A, and word t + 4*r of column g of B."""
    ((a_row, a_column),), ((b_row, b_column),) = ptx_isa(k, bits)
    per_word, words = 32 // bits, k * bits // 32
    for lane in range(32):
        at = {"g": lane // 4, "t": lane % 4}
        for i in range(16 * k // 32):
            r = i // per_word
            row, word = at["g"] + 8 * (r % 2), at["t"] + 4 * (r // 2)
            assert (row, word * per_word + i % per_word) == (
                eval(a_row, {"i": i, **at}),
                eval(a_column, {"i": i, **at}),
            )
        for i in range(8 * k // 32):
            word = at["t"] + 4 * (i // per_word)
            assert (word * per_word + i % per_word, at["g"]) == (
                eval(b_row, {"i": i, **at}),
                eval(b_column, {"i": i, **at}),
            )
    assert words in (4, 8)


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one.name)
def test_registers_hold_each_element_once(one: Instruction) -> None:
    a, b, d = one._registers()
    rows = 16 if one.family == "wgmma" else one.m
    copies = 1 if one.template != "mma_volta" else 4  # each quad pair holds the whole tile
    wide = {f: 32 * max(4, instructions.BYTES[f]) // instructions.BYTES[f] for f in (one.a, one.b, one.output)}
    assert a * wide[one.a] == rows * one.k * copies
    assert b * wide[one.b] == one.n * one.k * copies
    assert d * wide[one.output] == rows * one.n * copies


@pytest.mark.parametrize("fmt", ["fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "fp64", "int8", "int32"])
def test_small_integers_are_exact_in_every_format(fmt: str) -> None:
    numbers = np.arange(-4, 5)
    codes = tiles.small_codes(numbers, fmt)
    assert codes.dtype == CODES[fmt]
    assert tiles.small_integers(codes, fmt).tolist() == numbers.tolist()
    assert software.values(codes, fmt).tolist() == numbers.tolist()


@pytest.mark.parametrize("name", ["mma.m16n8k16 fp16->fp32", "wgmma.m64n8k32 e4m3->fp16", "mma.m8n8k4 fp64->fp64"])
def test_the_layout_tiles_find_any_two_elements_that_change_places(name: str) -> None:
    """Swap two elements of A's k for one lane only, as a wrong fragment would: some result must change."""
    one = instructions.get(name)
    given = tiles.layout_operands(one, 1)
    right = tiles.layout_results(one, given)
    for i, j in ((0, 1), (1, one.k - 1), (one.k // 2 - 1, one.k // 2)):
        a = given["a"].copy()
        a[:, 3, [i, j]] = a[:, 3, [j, i]]
        assert (tiles.layout_results(one, {**given, "a": a}) != right).any()
    assert (tiles.layout_results(one, {**given, "b": given["b"][:, ::-1]}) != right).any()


# --- the driver, replaced -------------------------------------------------------------------------------------------
class Driver:
    """What the CUDA driver does with a module and a launch, as far as one can see; the kernels run in software."""

    def __init__(self, names: dict[bytes, str]) -> None:
        self.names, self.modules, self.functions, self.launched = names, [], [], []
        self.context = None

    def cuCtxGetCurrent(self, context: Any) -> int:  # noqa: N802
        context._obj.value = self.context
        return 0

    def cuDeviceGet(self, number: Any, index: int) -> int:  # noqa: N802
        number._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, number: Any) -> int:  # noqa: N802
        context._obj.value = 0xC0 + number.value
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        self.context = context.value
        return 0

    def cuModuleLoadData(self, module: Any, cubin: bytes) -> int:  # noqa: N802
        self.modules.append(self.names[cubin])
        module._obj.value = len(self.modules)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, entry: bytes) -> int:  # noqa: N802
        self.functions.append((self.modules[module.value - 1], entry.decode()))
        function._obj.value = len(self.functions)
        return 0

    def cuLaunchKernel(self, function: Any, *args: Any) -> int:  # noqa: N802
        *sizes, stream, pointers, extra = args
        grid, block = sizes[0].value, sizes[3].value
        assert [s.value for s in sizes] == [grid, 1, 1, block, 1, 1, 0]
        assert extra is None
        assert stream.value == 0x51
        name, entry = self.functions[function.value - 1]
        one = BY_NAME[name]
        assert entry == one.kernel.entry
        addresses = [ctypes.c_void_p.from_address(p).value for p in pointers[:-1]]
        last = ctypes.c_int.from_address(pointers[len(pointers) - 1]).value
        if isinstance(one, Instruction):
            run_tiles(one, grid, block, addresses, last)
        else:
            run_elements(one, grid, block, addresses, last)
        self.launched.append(name)
        return 0

    def cuGetErrorName(self, status: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"CUDA_ERROR_NO_BINARY_FOR_GPU"
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"no kernel image is available"
        return 0


def memory(address: int | None, dtype: Any, count: int) -> Any:
    """A torch tensor on raw memory."""
    import torch

    assert address is not None
    size = np.dtype(dtype).itemsize
    buffer = (ctypes.c_byte * (count * size)).from_address(address)
    return torch.from_numpy(np.frombuffer(buffer, tiles.SIGNED[size]))


def run_tiles(one: Instruction, grid: int, block: int, addresses: list[int | None], steps: int) -> None:
    assert block == (128 if one.family == "wgmma" else 32)
    k = steps * one.k
    counts = (one.m * k, one.n * k, one.m * one.n, one.m * one.n)
    formats = (one.a, one.b, one.output, one.output)
    tensors = [memory(p, CODES[f], grid * n) for p, f, n in zip(addresses, formats, counts, strict=True)]
    standin._tiles(one, grid, *tensors, steps)


def run_elements(one: Scalar, grid: int, block: int, addresses: list[int | None], n: int) -> None:
    assert grid * block >= n > (grid - 1) * block
    tensors = [memory(p, one.source, n) for p in addresses[:3]]
    standin._elements(one, *tensors, memory(addresses[3], one.result, n), n)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, compiler: nvrtc.NVRTC) -> tuple[cuda.Gpu, Driver]:
    """A :class:`cuda.Gpu` whose torch says that it has an H100, and whose driver is the one above."""
    import torch

    names: dict[bytes, str] = {}

    def compile_and_remember(source: str, arch: str, name: str, major: int | None) -> nvrtc.Binary:
        assert arch == ("sm_90a" if name.startswith("wgmma") else "sm_90")
        assert major == 13
        binary = compiler.compile(source, arch, name)
        assert names.setdefault(binary.cubin, name) == name
        return binary

    monkeypatch.setattr(nvrtc, "compile", compile_and_remember)
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda device: (9, 0),
        "device": lambda device: contextlib.nullcontext(),
        "current_device": lambda: 0,
        "current_stream": lambda: SimpleNamespace(cuda_stream=0x51),
        "synchronize": lambda *device: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    library = Driver(names)
    return cuda.Gpu("cuda", library), library


def test_every_instruction_is_launched_and_gives_the_models_bits(
    gpu: tuple[cuda.Gpu, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way of a case to a GPU and back, with its memory, its cubin and its arguments."""
    one, library = gpu
    plain = tiles.to_device
    monkeypatch.setattr(tiles, "to_device", lambda codes, device: plain(codes, "cpu"))
    monkeypatch.setattr(scalars, "to_device", lambda codes, device: plain(codes, "cpu"))
    monkeypatch.setattr(instruction_cases, "launcher", lambda device: one)
    meta = {"kind": "cuda", "device": "NVIDIA H100 80GB HBM3", "capability": "9.0"}
    matrix = (*instruction_cases.matrix_cases("mma"), *instruction_cases.matrix_cases("wgmma"))
    for case in (*matrix[::5], *instruction_cases.scalar_cases()):
        given = case.inputs()
        got = case.compute(given, "cuda")
        assert set(got) == set(case.formats)
        want = case.emulate(given, meta)
        for name, codes in want.items():
            assert np.array_equal(got[name], codes), (case.name, name)
    assert library.context == 0xC0
    assert len(library.modules) == len(set(library.modules)) == len(matrix[::5]) + len(SCALARS)
    assert len(library.launched) > len(library.modules)


def test_every_matrix_kernel_takes_its_arguments(gpu: tuple[cuda.Gpu, Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    one, library = gpu
    plain = tiles.to_device
    monkeypatch.setattr(tiles, "to_device", lambda codes, device: plain(codes, "cpu"))
    for key, instruction in enumerate(TABLE):
        given = tiles.layout_operands(instruction, key)
        got = tiles.product(instruction, given["a"], given["b"], given["c"], "cuda", one)
        assert np.array_equal(got, tiles.layout_results(instruction, given)), instruction.name
    assert library.launched == [one.name for one in TABLE]


def test_an_error_of_the_driver_is_named(gpu: tuple[cuda.Gpu, Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    one, library = gpu
    library.cuModuleLoadData = lambda module, cubin: 209  # type: ignore[method-assign]
    kernel = SCALARS[0].kernel
    with pytest.raises(
        LabError, match="cuModuleLoadData failed: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is avail"
    ):
        one.launch(kernel, 1, 32, [torch.zeros(4), 4])
    with pytest.raises(LabError, match=r"a tensor of shape \(2, 3\) for 'cvt.rna.tf32.f32' is not contiguous"):
        one.launch(kernel, 1, 32, [torch.zeros(3, 2).t(), 4])


def test_without_a_driver_or_a_gpu_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(cuda, "LIBRARIES", ("libcuda-of-nowhere.so.1",))
    cuda.driver.cache_clear()
    refuses(lambda: cuda.driver(), r"the CUDA driver cannot be loaded: libcuda-of-nowhere.so.1")
    if not torch.cuda.is_available():
        refuses(lambda: cuda.Gpu("cuda"), "no CUDA device is present")


def test_wrong_tiles_are_refused() -> None:
    one = instructions.get("mma.m16n8k16 fp16->fp32")
    launcher = standin.launcher("cpu")
    a, b, c = np.zeros((1, 16, 16), np.uint16), np.zeros((1, 8, 16), np.uint16), np.zeros((1, 16, 8), np.uint32)
    assert not tiles.product(one, a, b, c, "cpu", launcher).any()
    with pytest.raises(LabError, match="takes fp16, fp16 and fp32; given uint32, uint16, uint32"):
        tiles.product(one, a.astype(np.uint32), b, c, "cpu", launcher)
    refuses(lambda: tiles.product(one, a[:, :, :8], b[:, :, :8], c, "cpu", launcher), "cannot take tiles of shapes")
    shared = instructions.get("wgmma.m64n8k16 fp16->fp32 from shared memory")
    a, b, c = (np.zeros((1, n, 17 * 16), np.uint16) for n in (64, 8, 64))
    with pytest.raises(LabError, match="takes at most 256 products here; given 272"):
        tiles.product(shared, a, b, c[:, :, :8].astype(np.uint32), "cpu", launcher)


def test_copies_of_a_row_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = instructions.get("mma.m16n8k16 fp16->fp32")
    a, b, c = operands.triples(one, 1)["random"]

    def spoiled(*args: Any) -> Any:
        d = real(*args)
        d[0, 11, 3] ^= 1
        return d

    real = tiles.product
    monkeypatch.setattr(tiles, "product", spoiled)
    with pytest.raises(LabError, match="row 3 gives different bits in different rows of its tile"):
        tiles.dot_rows(one, a, b, c, "cpu", standin.launcher("cpu"))
