"""The exhaustive proofs on a slice; that they notice a wrong route; that they go on where they were interrupted."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prove import __main__ as command
from prove import casts, fma, fp8, half, pairs, runner, runs
from prove.grid import grid
from prove.shares import Difference, Part, Share, cut, demand_same, nan_alike
from prove.triples import triples

import fplab
from fplab import exact
from fplab.formats import Rounding, get

ROOT = Path(__file__).parent.parent
Array = np.ndarray[Any, Any]


def prove(folder: Path, *shares: Share, fresh: bool = False) -> int:
    part = Part("made_up", "shares of a test", lambda quick: list(shares))
    return runner.prove([part], quick=False, fresh=fresh, jobs=1, folder=folder)


# --- the proofs themselves ------------------------------------------------------------------------------------
def test_a_slice_of_every_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--state", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "DIFFER" not in out
    assert re.search(r"[\d,]{9,} cases", out)
    for part in command.PARTS:
        assert f"-- {part.name}: {part.title}" in out
        for share in part.shares(True):
            assert share.claim in out


@pytest.mark.parametrize("part", command.PARTS, ids=lambda part: part.name)
@pytest.mark.parametrize("quick", [True, False])
def test_shares_have_keys_of_their_own(part: Part, quick: bool) -> None:
    keys = [share.key for other in command.PARTS for share in other.shares(quick)]
    assert len(set(keys)) == len(keys)
    assert len(part.shares(quick)) > 10


def test_full_shares_cover_everything() -> None:
    assert sorted(block for part in cut(casts.BLOCKS, 7) for block in part) == list(range(casts.BLOCKS))
    assert casts.BLOCKS * casts.BLOCK == 2**32
    found: dict[tuple[Any, ...], list[int]] = {}
    for share in casts.exhaustive(False) + [
        s for s in pairs.shares(False) if s.run in (pairs.fast_route, pairs.with_torch)
    ]:
        found.setdefault((share.run.__name__, *share.args[:-1]), []).extend(share.args[-1])
    assert len(found) == 10 * 6 + 3 + 1 + 1 + 6 + 2 * 4
    for claim, blocks in found.items():
        assert sorted(blocks) == list(range(4096)), claim
    assert pairs.CODES**2 == 2**32 == 4096 * pairs.ROWS * pairs.CODES


# --- a wrong route is noticed ---------------------------------------------------------------------------------
def wrong(function: Callable[..., Any], at: float) -> Callable[..., Any]:
    """A route whose result is off by one in the last float32 bit wherever the first operand has one value."""

    def mutant(x: Array, *args: Any, **kwargs: Any) -> Any:
        result = function(x, *args, **kwargs)
        values = result[0] if isinstance(result, tuple) else result
        if values.dtype == np.float32:
            values.view(np.uint32)[x == np.float32(at)] += np.uint32(1)
        elif values.dtype.kind == "u":
            values[x == np.float32(at)] += values.dtype.type(1)
        return result

    return mutant


one = range(0x3F8, 0x3F9)  # the block of patterns that begins with 1.0
MUTANTS = [
    ("quantize", Share("c", "a", casts.by_definition, ("fp16", "odd", one)), "0x3f800000 (1.0) gives 0x3f800001"),
    ("quantize", Share("c", "a", casts.stochastic, ("bf16", one)), "0x3f800000 (1.0) gives 0x3f800001"),
    ("quantize", Share("c", "a", casts.with_numpy, (one,)), "expected 0x3f800000 (1.0); 1 of 1,048,576"),
    ("encode", Share("c", "a", casts.with_numpy, (one,)), "gives 0x3c01 (1.0009765625), expected 0x3c00 (1.0)"),
    ("encode", Share("c", "a", casts.with_ml_dtypes, (one,)), "gives 0x3f810000 (1.0078125), expected 0x3f800000"),
    ("quantize",
     Share("c", "a", casts.with_formula, ("tf32", "rna", one)),
     "quantize to tf32, rna, and the bit formula"),
    ("encode", Share("c", "a", casts.edges, ("e4m3", "rtp", 1)), "encode to e4m3, rtp, overflow=saturate: input 0x3f8"),
    ("add",
     Share("c", "a", pairs.fast_route, ("add", range(960, 961))),
     "0x3f800000 (1.0), 0x00000000 (0.0) gives 0x3f80"),
    ("div", Share("c", "a", pairs.with_torch, ("div", range(960, 961))), "fp16 div and torch: input 0x3f800000 (1.0)"),
    ("mul",
     Share("c", "a", fp8.arithmetic, ("e3m4", "mul", ("rtn",), True, range(40, 56))),
     "e3m4 mul, rtn, overflow=inf"),
    ("sqrt", Share("c", "a", fp8.arithmetic, ("e4m3", "sqrt", ("rne",), False, range(256))), "e4m3 sqrt, rne"),
    ("fma",
     Share("c", "a", fma.with_mpfr, ("fp32", "rtp", 100, 8000)),
     "fp32 fma, rtp, and MPFR: input 0x3f800000 (1.0), "),
    ("fma", Share("c", "a", fma.with_fractions, ("e5m2", "rtz", 50, 4000)), "e5m2 fma, rtz: input 0x3f800000 (1.0), "),
    ("fma",
     Share("c", "a", fma.every_triple, ("rne", "nan", range(56, 57))),
     "e4m3 fma, rne, overflow=nan: input 0x3f8"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "share", "text"), MUTANTS, ids=lambda x: x.run.__name__ if isinstance(x, Share) else None
)
def test_a_wrong_route_is_reported(
    name: str, share: Share, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Exit status 1 and the first differing bits; the share is not remembered, and passes once the route is right."""
    with monkeypatch.context() as patch:
        patch.setattr(fplab, name, wrong(getattr(fplab, name), 1.0))
        assert prove(tmp_path, share) == 1
    captured = capsys.readouterr()
    assert text in captured.out
    assert "DIFFERENCE in " in captured.err
    assert re.search(r"\bc +a .*DIFFERS", captured.out)
    assert prove(tmp_path, share) == 0
    assert "proved already" not in capsys.readouterr().out


def test_a_wrong_flag_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = fplab.mul

    def mutant(*args: Any, flags: bool = False, **kwargs: Any) -> Any:
        found = right(*args, flags=flags, **kwargs)
        return (found[0], found[1] & np.uint8(0xFD)) if flags else found

    monkeypatch.setattr(fplab, "mul", mutant)
    share = Share("c", "a", fp8.arithmetic, ("e5m2", "mul", ("rne",), True, range(1)))
    assert prove(tmp_path, share) == 0  # nothing underflows in a product with zero
    share = Share("c", "a", fp8.arithmetic, ("e5m2", "mul", ("rne",), True, range(1, 3)))
    assert prove(tmp_path, share) == 1
    assert "flags of e5m2 mul, rne, overflow=inf" in capsys.readouterr().out


def test_a_route_that_fails_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran.clear()
    assert prove(tmp_path, Share("c", "a", failing, (1,)), Share("d", "a", count, (2,))) == 1
    assert ran == [2]
    assert "failing(1,):\nTraceback" in capsys.readouterr().out


def test_a_wrong_command_exits_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fplab, "fma", wrong(fplab.fma, 1.0))
    monkeypatch.setattr(command, "PARTS", (Part("fma", "its first share", lambda quick: fma.shares(quick)[:1]),))
    assert command.main(["--quick", "--part", "fma", "--state", str(tmp_path)]) == 1


def test_differences_are_bits_not_values() -> None:
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert demand_same(zeros, zeros.copy(), "same", ones) == 4
    signed = zeros.copy()
    signed[2] = -0.0
    with pytest.raises(Difference) as found:
        demand_same(signed, zeros, "zeros", ones)
    assert str(found.value) == (
        "zeros: input 0x3f800000 (1.0) gives 0x80000000 (-0.0), expected 0x00000000 (0.0); 1 of 4 compared there differ"
    )
    with pytest.raises(Difference, match=r"input 0x3f800000 \(1\.0\) gives 0x01, expected 0x00; 1 of 4"):
        demand_same(np.array([False, True, False, False]), np.zeros(4, bool), "answers", ones)


def test_only_a_nan_excuses_a_nan() -> None:
    nan = np.array([0xFFC00001, 0x7FC00000], np.uint32).view(np.float32)
    theirs = np.array([np.nan, 1.0], np.float32)
    excused = nan_alike(nan, theirs).view(np.uint32)
    assert excused.tolist() == [0xFFC00001, 0x3F800000]


# --- the references of the proofs -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3", "e2m1", "e4m3fnuz", "e8m0"])
@pytest.mark.parametrize("mode", runs.DETERMINISTIC)
def test_runs_hold_between_their_starts(name: str, mode: Rounding) -> None:
    """A run's result is the oracle's at its first, its last and a middle pattern."""
    fmt = get(name)
    choices = casts.plain(fmt, mode)
    found = runs.runs(fmt, choices)
    ends = np.append(found.starts[1:].astype(np.int64), 1 << 32)
    chosen = np.unique(np.linspace(0, ends.size - 1, 60).astype(int))
    for k in chosen:
        first, last = int(found.starts[k]), int(ends[k]) - 1
        for pattern in {first, (first + last) // 2, last}:
            code, _ = exact.round_to(exact.decode(pattern, "fp32"), fmt, mode, nan=choices.nan)
            assert code == found.codes[k], hex(pattern)
            assert found.at(np.array([pattern], np.uint32))[0] == k
            assert found.block(pattern, 1)[0] == found.bits[k]


def test_integer_arithmetic_agrees_with_fractions() -> None:
    """The second FP16 arithmetic against the oracle, on codes from every corner."""
    corners = [0, 1, 2, 0x3FF, 0x400, 0x401, 0x1234, 0x3BFF, 0x3C00, 0x3C01, 0x5555, 0x7BFF, 0x7C00, 0x7C01, 0x7E00]
    codes = np.array([*corners, *(c | 0x8000 for c in corners)], np.int64)
    out = np.empty(codes.size, np.uint16)
    for number, op in enumerate(half.OPERATIONS):
        for a in codes.tolist():
            half.operate(number, a, codes, out)
            for b, got in zip(codes.tolist(), out.tolist(), strict=True):
                result, _ = getattr(exact, op)(exact.decode(a, "fp16"), exact.decode(b, "fp16"))
                assert got == exact.round_to(result, "fp16")[0], (op, hex(a), hex(b))


def test_fields_of_fp16_decode_as_the_oracle_says() -> None:
    codes = np.arange(1 << 16)
    want, got = grid(get("fp16")).decode(codes, np.float32), half.decode_all()
    assert demand_same(got, nan_alike(got, want), "decode", codes) == 1 << 16


@pytest.mark.parametrize("name", fma.FORMATS)
def test_triples_are_of_the_format_and_of_every_stratum(name: str) -> None:
    """Operands are representable, and among the results each danger is common."""
    fmt, n = get(name), 16_000
    operands = triples(fmt, 3, n)
    for x in operands:
        assert (x.dtype, x.shape) == (np.float32, (n,))
        same = (fplab.quantize(x, fmt) == x) | np.isnan(x)
        assert same.all()
    values, flags = fplab.fma(*operands, fmt, flags=True)
    counts = {
        "inexact": int((flags & 1).astype(bool).sum()),
        "underflow": int((flags & 2).astype(bool).sum()),
        "overflow": int((flags & 4).astype(bool).sum()),
        "invalid": int((flags & 16).astype(bool).sum()),
        "zero": int((values == 0).sum()),
        "tie": int((fplab.fma(*operands, fmt, "rna") != values)[~np.isnan(values)].sum()),
    }
    assert all(count > n // 200 for count in counts.values()), counts
    for x, y in zip(operands, triples(fmt, 3, n), strict=True):
        assert demand_same(x, y, "the same key") == n


# --- interrupting and going on --------------------------------------------------------------------------------
ran: list[int] = []


def count(number: int) -> int:
    ran.append(number)
    return 10


def failing(number: int) -> int:
    raise fplab.LabError("nothing works")


def interrupted(number: int) -> int:
    raise KeyboardInterrupt


def test_an_interrupted_proof_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran.clear()
    before, after = [[Share("c", "a", count, (k,)) for k in ks] for ks in ((0, 1, 2), (3, 4))]
    assert prove(tmp_path, *before, Share("c", "a", interrupted, (9,)), *after) == 130
    assert ran == [0, 1, 2]
    captured = capsys.readouterr()
    assert "interrupted; what is finished is kept" in captured.err
    assert "3 of 6 shares" in captured.out
    assert prove(tmp_path, *before, *after) == 0
    assert ran == [0, 1, 2, 3, 4]
    out = capsys.readouterr().out
    assert "3 of 5 shares are proved already" in out
    assert "50 cases" in out
    assert prove(tmp_path, *before, *after, fresh=True) == 0
    assert ran == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]  # nothing half-written beside it


def test_another_kernel_is_proved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    shares = [Share("c", "a", count, (k,)) for k in range(3)]
    assert prove(tmp_path, *shares) == 0
    before = runner.digest()
    monkeypatch.setattr(runner.kernels, "digest", lambda *names: "changed")
    assert runner.digest() != before
    assert prove(tmp_path, *shares) == 0
    assert ran == [0, 1, 2, 0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_state_is_no_proof(tmp_path: Path) -> None:
    ran.clear()
    shares = [Share("c", "a", count, (k,)) for k in range(2)]
    assert prove(tmp_path, *shares) == 0
    next(tmp_path.iterdir()).write_text('{"count(0,)": [10')
    assert prove(tmp_path, *shares) == 0
    assert ran == [0, 1, 0, 1]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONUNBUFFERED": "1"}


def no_process_is_left(group: int) -> bool:
    """Whether a process group dies out within a minute (multiprocessing's tracker leaves a little later)."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def two_processes_at_work(state: Path) -> subprocess.Popen[str]:
    """The command on two processes, in a group of its own, with a first share finished."""
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.prove", "--part", "fma", "--jobs", "2", "--state", str(state)],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not list(state.glob("*.json")) and run.poll() is None:
        time.sleep(0.1)
    return run


def test_the_command_stops_at_an_interrupt(tmp_path: Path) -> None:
    """Two processes, interrupted as a terminal does it, to the whole group: 130, no traceback, finished shares kept."""
    run = two_processes_at_work(tmp_path / "state")
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate()
    assert run.returncode == 130, err
    assert "Traceback" not in err, err
    assert "interrupted; what is finished is kept" in err
    assert re.search(r"fma of 5 formats, rne rtz rtp rtn, stratified +MPFR +[\d,]{7,} .* of 80 shares", out)
    assert no_process_is_left(run.pid)


def test_a_command_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    with two_processes_at_work(tmp_path / "state") as run:
        run.kill()
    assert no_process_is_left(run.pid)


def test_help_names_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("--fresh", *(part.name for part in command.PARTS)))


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["--part", "fp64"])
    assert stopped.value.code == 2
    assert "'casts', 'pairs', 'fp8', 'fma'" in capsys.readouterr().err
