"""Rounding 2^24 float32 values and FP16 arithmetic on 2^24 pairs, against a copy of the same array and peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np

import fplab

from .timing import aligned, compared, judged, ratios, seconds, sized, table

N = sized(1 << 24, 1 << 14)
SMALL = sized(1 << 18, 1 << 10)  # for peers too slow for N; their ratio is against a copy's time per element
FORMATS = ("fp16", "bf16", "tf32", "e4m3", "e5m2")
ROUNDINGS = ("rne", "rna", "rtz", "rtp", "rtn", "odd", "stochastic")
ARITHMETIC = (1.6, 1.0)
LIMITS = {"rne": (0.7, 1.1), "stochastic": (0.7, 1.5)}  # both cores, one core


def inputs() -> dict[str, np.ndarray]:
    """Two inputs: normally distributed, and with exponents spread over 2^-30 .. 2^20."""
    rng = np.random.Generator(np.random.Philox(1))
    found = {}
    for name in ("normal", "spread"):
        x = aligned(N)
        x[:] = rng.standard_normal(N, np.float32)
        if name == "spread":
            x *= np.exp2(rng.integers(-30, 21, N)).astype(np.float32)
        found[name] = x
    return found


def with_threads(n: int, work: Callable[[], object]) -> Callable[[], object]:
    """The work, done with n of the lab's threads."""

    def run() -> None:
        fplab.set_num_threads(n)
        work()

    return run


def peers(fmt: str, x: np.ndarray) -> dict[str, Callable[[], object]]:
    """The same cast by other libraries, where installed: values in, narrow values out and back into float32."""
    found: dict[str, Callable[[], object]] = {}
    if fmt == "fp16":
        found["numpy"] = lambda: x.astype(np.float16).astype(np.float32)
    torch = _module("torch")
    kinds = {"fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    if torch and fmt in kinds:
        tensor, dtype, back = torch.from_numpy(x), getattr(torch, kinds[fmt]), torch.empty(x.size)
        found["torch"] = lambda: back.copy_(tensor.to(dtype))
    ml_dtypes = _module("ml_dtypes")
    if ml_dtypes and fmt in ("bf16", "e4m3", "e5m2"):
        narrow = getattr(ml_dtypes, kinds[fmt])
        found["ml_dtypes"] = lambda: x.astype(narrow).astype(np.float32)
    return found


def slow_peers(fmt: str, x: np.ndarray) -> dict[str, Callable[[], object]]:
    """Peers that need seconds for 2^24 values."""
    found: dict[str, Callable[[], object]] = {}
    gfloat = _module("gfloat")
    if gfloat:
        formats = _module("gfloat.formats")
        record = {
            "fp16": formats.format_info_binary16,
            "bf16": formats.format_info_bfloat16,
            "e4m3": formats.format_info_ocp_e4m3,
            "e5m2": formats.format_info_ocp_e5m2,
        }.get(fmt)
        if record:
            found["gfloat"] = lambda: gfloat.round_ndarray(record, x.astype(np.float64))
    qtorch = _module("qtorch.quant")
    if qtorch:
        torch = _module("torch")
        form = fplab.formats.get(fmt)
        tensor = torch.from_numpy(x.copy())
        found["qtorch"] = lambda: qtorch.float_quantize(tensor, form.exponent_bits, form.fraction_bits)
    return found


def _module(name: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def quantize_table(cores: int) -> str:
    """Every format and rounding against the copy, on one core and on all."""
    rows = []
    out = aligned(N)
    for label, x in inputs().items():
        for fmt in FORMATS:
            work = {}
            for mode in ROUNDINGS:
                seed = 1 if mode == "stochastic" else None

                def cast(x: np.ndarray = x, fmt: str = fmt, mode: str = mode, seed: int | None = seed) -> None:
                    fplab.quantize(x, fmt, mode, seed=seed, out=out)

                for threads in (1, cores):
                    work[f"{mode} {threads}"] = with_threads(threads, cast)
            found = ratios(lambda x=x: np.copyto(out, x), work)
            for mode in ROUNDINGS:
                both, one = LIMITS.get(mode, LIMITS["rne"])
                what = f"{fmt} {mode} {label}"
                cells = (
                    judged(f"{what}, {t} threads", found[f"{mode} {t}"], most) for t, most in ((1, one), (cores, both))
                )
                rows.append((what, *cells, f"{one}", f"{both}"))
    fplab.set_num_threads(None)
    head = ("times a copy", "1 core", f"{cores} cores", "goal 1", f"goal {cores}")
    return table("quantize, 2^24 float32 into a given out; np.copyto of the same array = 1", head, rows)


def arithmetic_table(cores: int) -> str:
    """FP16 operations on 2^24 pairs against the copy of one operand."""
    given = inputs()
    with np.errstate(over="ignore"):
        a, b = aligned(N), aligned(N)
        a[:] = fplab.quantize(given["normal"], "fp16")
        b[:] = fplab.quantize(np.clip(given["spread"], -60000, 60000), "fp16")
    out = aligned(N)
    work = {}
    for op in (fplab.add, fplab.sub, fplab.mul, fplab.div):
        for threads in (1, cores):
            work[f"{op.__name__} {threads}"] = with_threads(threads, lambda op=op: op(a, b, "fp16", out=out))
    found = ratios(lambda: np.copyto(out, a), work)
    fplab.set_num_threads(None)
    rows = [
        (
            f"fp16 {op}",
            *(judged(f"fp16 {op}, {t} threads", found[f"{op} {t}"], ARITHMETIC[i]) for i, t in enumerate((1, cores))),
            *ARITHMETIC,
        )
        for op in ("add", "sub", "mul", "div")
    ]
    head = ("times a copy", "1 core", f"{cores} cores", "goal 1", f"goal {cores}")
    return table("FP16 arithmetic, 2^24 pairs into a given out; np.copyto of one operand = 1", head, rows)


def limit_table(cores: int) -> str:
    """What the memory allows: copies that read before they write, and copies past the cache."""
    from fplab.kernels.memory import BLOCK

    x, out = aligned(N), aligned(N)
    halves = [(i * N // cores, (i + 1) * N // cores) for i in range(cores)]

    def threaded_copy() -> None:
        from fplab.threads import _pool

        list(_pool(cores).map(lambda h: np.copyto(out[h[0] : h[1]], x[h[0] : h[1]]), halves))

    found = ratios(lambda: np.copyto(out, x), {"copy": threaded_copy})
    once = min(seconds(lambda: np.copyto(out, x)) for _ in range(9))
    rate = 2 * 4 * N / once / 1e9
    return (
        f"This machine: np.copyto moves {rate:.1f} GB/s on one core (bytes read and written); split over {cores} cores "
        f"it takes {found['copy']:.2f} of that time.\nRounding writes past the cache in blocks of {BLOCK}. Whatever "
        f"reads and writes 4 bytes an element cannot run below that copy; FP16 pairs read 8 and write 4: 1.5 of it."
    )


def peers_table(cores: int) -> str:
    """RNE by the lab on all cores and by peers, and how many times the lab's time each takes."""
    rows = []
    out = aligned(N)
    x = inputs()["normal"]
    small = np.ascontiguousarray(x[:SMALL])
    for fmt in FORMATS:
        mine = {"fplab": with_threads(cores, lambda fmt=fmt: fplab.quantize(x, fmt, out=out))}
        found = ratios(lambda: np.copyto(out, x), mine | peers(fmt, x), rounds=sized(5, 1))
        copy = min(seconds(lambda: np.copyto(out, x)) for _ in range(9))
        for name, work in slow_peers(fmt, small).items():
            work()
            found[name] = min(seconds(work) for _ in range(3)) / SMALL / (copy / N)
        compared("rounding", fmt, found)
        rows += [(f"{fmt} {name}", f"{r:.2f}", f"{r / found['fplab']:.1f}") for name, r in found.items()]
    fplab.set_num_threads(None)
    return table("RNE against peers (all cores each)", ("times a copy", "ratio", "of fplab's time"), rows)


def main() -> None:
    """Print every table."""
    cores = fplab.num_threads()
    for part in (limit_table, quantize_table, arithmetic_table, peers_table):
        print(part(cores), flush=True)
        print()
