"""Golden vectors: right by the oracles, the same bytes everywhere, and every decision of a unit shows in them."""

import contextlib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals
from test_tensorcore_fields import rows as other_rows

from fplab import LabError, cli, codebooks, exact, formats, scaled, vectors
from fplab.hardware import software
from fplab.kernels import ggml as blocks
from fplab.scaled import oracle as scaling
from fplab.stored import PACKED, STORED, ggml, kquants, nf4, packed
from fplab.tensorcore import classes, get, limits, models, oracle
from fplab.tensorcore.models import Model
from fplab.vectors import layouts, mutants, operations
from fplab.vectors.rows import draw_rows

Array = np.ndarray[Any, Any]
CLASSES = [members[0] for members in classes()]
# Roundings of positive numbers that are one where significands have a digit alone: it is odd, and ties go up.
OF_ONE_DIGIT = ({"rne", "rna"}, {"rtz", "rtn", "odd"})
# One unit of each algorithm, whose rows are put to the oracle.
KINDS = [
    get("V100"), get("H100", "fp16", "fp16"), get("B200", "mxfp8_e4m3"), get("H100", "e5m2", "fp16", "mma"),
    get("B200", "nvfp4"), get("MI210", "bf16"), get("MI300X", "tf32"), get("MI300X", "e4m3fnuz"), get("H100", "fp64"),
    get("T4", "int8"),
]  # fmt: skip


@pytest.mark.parametrize("model", KINDS, ids=lambda m: m.kind + m.name)
def test_results_are_the_oracles(model: Model) -> None:
    found = operations.of_model(model, 2000, 1)
    for row in range(0, 2000, 61):
        cells = dict(found.widths(row))
        a, b, c = (software.values(cells[n], f) for n, f in (("a", model.a), ("b", model.b), ("c", model.output)))
        scales = [software.values(cells[n], model.scale[0]) for n in ("scale_a", "scale_b")] if model.scale else []
        value = oracle.dot(a.tolist(), b.tolist(), float(c[0]), model, list(zip(*scales, strict=True)))
        if model.output == "int32":
            assert int(value.value) == int(cells["d"].view(np.int32)[0])
        else:
            bits = np.array([oracle.result_bits(value, model)], np.uint64 if model.output == "fp64" else np.uint32)
            number = bits.view(np.float64 if model.output == "fp64" else np.float32)
            assert software.codes(number, model.output)[0] == cells["d"][0], (row, found.lines[row])


def apart(model: Model) -> dict[str, int]:
    """The mutants of a unit and in how many of the first rows they differ; of those in none other rows are asked."""
    found = operations.of_model(model, 2000, 1)
    shown = operations.coverage(found)
    silent = {name: answer for name, answer in mutants.mutants(model) if not shown[name]}
    for seed in (2, 3):
        drawn, lengths, _ = draw_rows(model, 4000, seed)
        base = mutants.results(model, drawn, lengths)
        for name, answer in silent.items():
            wrong = np.flatnonzero(mutants.results(model, drawn, lengths, answer) != base)
            assert not wrong.size, f"{model.name}: {name} differs in a row of seed {seed} and in none of the corpus"
    for k in (model.k, 4 * model.k):
        given = other_rows(model, k, np.random.default_rng(5))
        with np.errstate(all="ignore"):
            wanted = mutants._dot(model, **given)
            for name, answer in silent.items():
                assert np.array_equal(answer(**given), wanted, equal_nan=True), (
                    f"{model.name}: {name} differs elsewhere"
                )
    return shown


def test_every_decision_of_a_unit_shows_in_the_first_rows() -> None:
    shown = apart(get("A100", "bf16"))
    assert min(shown.values()) > 0
    assert len(shown) == 61


@pytest.mark.parametrize("model", CLASSES, ids=lambda m: m.name)
def test_every_decision_of_every_unit_shows_in_the_first_rows(model: Model) -> None:
    shown = apart(model)
    assert sum(count > 0 for count in shown.values()) >= 2
    if model.kind in ("block", "widened", "grouped", "two_step", "two_step_fp8"):
        changed = {name.partition("=")[0] for name, count in shown.items() if count}
        assert {"alignment_bits"} | (
            {"length"} if len(limits.allowed(model)["length"]) > 1 and not model.scale else set()
        ) <= changed


def test_every_cell_of_the_table_has_vectors() -> None:
    assert {m.name for m in models.TABLE} == {m.name for members in classes() for m in members}
    assert operations.model_of(vectors.products("RTX 4090", "e4m3", rows=50)).name == "Ada mma.k32 e4m3->fp32"


@pytest.mark.parametrize("source", ["fp32", "fp64", "e4m3", "e8m0", "e2m1", "e5m2fnuz"])
def test_conversions_tell_formats_roundings_policies_and_flushing_apart(source: str) -> None:
    """What is computed by its definition is computed by the kernels, and each other target or rounding shows."""
    src = formats.get(source)
    for dst in formats.TABLE:
        found = vectors.conversions(source, dst.name)
        modes, policies = found.about["rounding"], found.about["overflow"]
        columns = found.columns
        for n, mode in enumerate(modes[:-1]):
            for p, policy in enumerate(policies):
                at = (columns["rounding"] == n) & (columns["overflow"] == p)
                values = exact_values(columns["x"][at], src)
                codes = vectors.operations.numeric.encode(
                    values, dst, mode, policy, nan=None if dst.has_nan else "zero"
                )
                both = {int(x): int(y) for x, y in zip(columns["x"][at], columns["y"][at], strict=True)}
                kernel = {int(x): int(y) for x, y in zip(columns["x"][at], codes, strict=True)}
                assert both == kernel, (source, dst.name, mode, policy)
        if source in ("fp32", "fp64") and dst.bits < src.bits:
            rows = list(
                zip(*(columns[n].tolist() for n in ("rounding", "overflow", "x", "word", "y", "flags")), strict=True)
            )
            for turn in range(1, len(modes)):  # every rounding in the place of another
                for n in range(len(modes)):
                    other = modes[(n + turn) % len(modes)]
                    if other == "stochastic":  # with the word 0 that others have it is rtz
                        continue
                    if not dst.fraction_bits and any({other, modes[n]} <= same for same in OF_ONE_DIGIT):
                        continue
                    own = [r for r in rows if r[0] == n]
                    assert any(
                        operations.convert(x, src, dst, other, policies[p], word)[0] != y for _, p, x, word, y, _ in own
                    ), (source, dst.name, modes[n], other)
            for p in range(len(policies)):
                for other in policies:
                    own = [r for r in rows if r[1] == p and other != policies[p]]
                    assert not own or any(
                        operations.convert(x, src, dst, modes[n], other, word)[0] != y for n, _, x, word, y, _ in own
                    ), (source, dst.name, policies[p], other)
            assert {16 * src.has_nan, 4, 2, 1} <= {
                bit for r in rows for bit in (r[5] & 16, r[5] & 4, r[5] & 2, r[5] & 1)
            } | {0}


def exact_values(codes: Array, form: formats.Format) -> Array:
    """Values of codes as float64, NaNs with sign and payload."""
    return np.asarray(vectors.operations.numeric.decode(codes, form, np.float64))


@pytest.mark.parametrize("scheme", list(scaled.SCHEMES))
def test_quantisers_are_the_oracles_and_rules_are_told_apart(scheme: str) -> None:
    kind, found = scaled.get_scheme(scheme).kind, {}
    for rule in scaled.RULES[kind]:
        for variant in scaled.VARIANTS[kind]:
            try:
                found[rule, variant] = vectors.quantisations(scheme, rule=rule, variant=variant)
            except LabError:
                continue
            one = found[rule, variant]
            record = scaled.get_scheme(scheme, rule=rule, variant=variant)
            if not isinstance(record.block, str):
                record = scaled.get_scheme(scheme, rule=rule, variant=variant, block=(1, record.block[1]))
            for row in range(0, 2000, 97):
                codes, scales, _ = scaling.quantize(one.columns["x"][row : row + 1].view(np.float32), record)
                own = one.columns["scale"][row : row + 1]
                own = own.view(np.float32) if scales.dtype == np.float32 else own
                assert (codes[0] == one.columns["codes"][row]).all(), one.lines[row]
                assert np.array_equal(scales.reshape(-1)[:1], own, equal_nan=scales.dtype.kind == "f"), one.lines[row]
    assert found
    keys = list(found)
    for i, one in enumerate(keys):
        for other in keys[i + 1 :]:
            assert any((found[one].columns[n] != found[other].columns[n]).any() for n in ("codes", "scale")), (
                one,
                other,
            )


REAL_HALVES, REAL_LARGEST, FULL = ggml.of_halves, ggml.largest, np.float32(0.5)


def cut_halves(x: Array) -> Array:
    """FP16 numbers cut toward zero, as bytes."""
    near = x.astype(np.float16)
    cut = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float16(0)), near)
    return cut.astype("<f2").view(np.uint8).reshape(-1, 2)


def flushed_halves(data: Array) -> Array:
    """FP16 numbers of bytes, subnormal ones taken for zeros."""
    x = REAL_HALVES(data)
    return np.where(np.abs(x) < 2**-14, 0 * x, x)


def stepped(cast: Any) -> Any:
    """The kernel of codes with another cast to integers."""

    def steps(x: Array, low: Array, inverse: Array, addend: Any, away: bool, most: Any, codes: Array) -> None:
        t = (x - low[:, None]) * inverse[:, None]
        codes[:] = np.minimum(cast(t + (np.copysign(addend, t) if away else addend)).astype(np.int8), most)

    return steps


def divided_up(x: Array, addend: Array, scale: Array, kept: Array, low: Any, high: Any, out: Array) -> None:
    """The kernel of k-quants' codes, whose ties go up."""
    codes = np.clip(np.floor((x + addend[:, None]) / scale[:, None] + FULL), low, high) - low
    out[:] = np.where(scale[:, None] == 0, kept, codes)


LEGACY, SUPER = ("q4_0", "q4_1", "q5_0", "q5_1"), ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
OTHERWISE: dict[tuple[Any, str, Any], tuple[str, ...]] = {
    (ggml, "halves", cut_halves): (*LEGACY, "q8_0"),
    (kquants, "halves", cut_halves): (*SUPER, "iq4_nl"),
    (ggml, "of_halves", flushed_halves): (*LEGACY, "q8_0"),
    (kquants, "of_halves", flushed_halves): (*SUPER, "iq4_nl", "iq4_xs"),
    (ggml, "largest", lambda x: REAL_LARGEST(x[:, ::-1])): ("q4_0", "q5_0"),  # of two the last
    (blocks, "steps", stepped(lambda t: np.ceil(t) - 1)): LEGACY,  # ties down
    (blocks, "steps", stepped(lambda t: np.rint(t - np.copysign(FULL, t)))): ("q8_0",),  # ties to even
    (blocks, "divided", divided_up): SUPER,  # ties up
    (kquants, "_nearest", lambda x: np.trunc(x).astype(np.int32)): ("iq4_xs",),
    (ggml, "half_power", lambda e: np.ldexp(2 * FULL, np.maximum(e.astype(np.int32), 2) - 128)): ("mxfp4_ggml",),
    (nf4, "BOUNDS", np.nextafter(nf4.BOUNDS, np.float32(-1)).tobytes()): ("fp4_bnb",),
}  # fmt: skip
"""Functions of :mod:`fplab.stored` that compute otherwise, and the formats in which that shows."""
CASES = [(name, *what) for what, names in OTHERWISE.items() for name in names]


def results_again(v: vectors.Vectors) -> list[Array]:
    """The results of a stored format's vectors computed anew, from the same operands."""
    name, count = v.about["stored"], len(v)
    how = {n: v.about[n] for n in ("bits", "zero_point") if n in v.about}
    if name in PACKED and v.about["operation"] == "read":  # whose tensors are drawn, whatever computes
        return [vectors.packings(name, read=True, rows=count, **how).columns["y"]]
    if name in PACKED:
        columns, *_ = layouts.store(PACKED[name], v.columns["x"].view(np.float32), how)
        return [columns[n] for n in v.results]
    if v.about["operation"] == "read":
        return [STORED[name].decode(v.columns["data"].reshape(-1)).reshape(count, -1).view(np.uint32)]
    return [STORED[name].encode(v.columns["x"].view(np.float32).reshape(-1)).reshape(count, -1)]


@pytest.mark.parametrize(("name", "module", "function", "other"), CASES)
def test_what_stores_otherwise_shows(name: str, module: Any, function: str, other: Any, monkeypatch: Any) -> None:
    own = [make() for make in operations.stored(name, 32 * 2000 // STORED[name].block, 1)]
    before = [results_again(v) for v in own]
    monkeypatch.setattr(module, function, np.frombuffer(other, np.float32) if isinstance(other, bytes) else other)
    apart_ = [int((x != y).any(axis=1).sum()) for v, old in zip(own, before, strict=True)
              for x, y in zip(old, results_again(v), strict=True)]  # fmt: skip
    assert max(apart_) > 0, apart_


INTEGERS, GROUPED_BY = (
    ("gptq", "gptq_v2", "awq", "pack_quantized"),
    ("awq", "pack_quantized", "nvfp4_pack", "torchao", "torchao_int4"),
)
HALVES = ("gptq", "awq", "e4m3_block", "e4m3_row", "llm_int8", "int8_row", "nvfp4_pack")
REAL = {
    n: getattr(packed, n)
    for n in ("words", "of_words", "quantize", "grouped", "as_compressed", "unpack_int4", "ranges")
}
LAYOUTS_OTHERWISE: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "codes from the last": ("words", lambda codes, bits: REAL["words"](codes[..., ::-1], bits), INTEGERS),
    "read from the last": ("of_words", lambda *x: REAL["of_words"](*x)[..., ::-1], INTEGERS),
    "outputs in a row": ("AWQ_ORDER", np.arange(8), ("awq",)),
    "cut": ("quantize", lambda x, fmt, **how: REAL["quantize"](x, fmt, "rtz", **how), HALVES),
    "groups in turn": ("groups_of", lambda inputs, groups: np.arange(inputs) % groups, GROUPED_BY),
    "columns in turn": ("_blocks_of", lambda n, blocks: np.arange(n) % blocks, ("e4m3_block",)),
    "blocks of 128": ("_blocks_of", lambda n, blocks: np.arange(n) // 128, ("e4m3_block",)),
    "a wider range": ("ranges", lambda w, group: [x * np.float32(1 + (i == 2) / 8) for i, x in enumerate(
        REAL["ranges"](w, group))], ("torchao",)),
    "scales of others": ("grouped", lambda codes, scales, *how: REAL["grouped"](codes, scales[::-1], *how),
                         (*INTEGERS, "int8_row", "e4m3_row", "torchao", "nvfp4_pack", "e4m3_block")),
    "AutoAWQ's quantiser": ("as_gptq", packed.as_awq, ("gptq", "gptq_v2")),
    "GPTQ's quantiser": ("as_awq", packed.as_gptq, ("awq",)),
    "one code higher": ("as_compressed", lambda w, *how: REAL["as_compressed"](w * np.float32(1.1), *how),
                        ("int8_row",)),
    "signs without the middle": ("as_compressed", lambda w, bits, group, zero: REAL["as_compressed"](
        w, bits, group, not zero), ("pack_quantized",)),
    "a reciprocal": ("PART_OF_127", np.nextafter(packed.PART_OF_127, np.float32(1)), ("llm_int8",)),
    "high nibbles first": ("unpack_int4", lambda *x, **how: REAL["unpack_int4"](*x, **how).reshape(-1, 2)[:, ::-1]
                           .reshape(-1), ("nvfp4_pack",)),
    "as it divides on CUDA": ("quantize_blockwise", lambda x, book, block, rule: codebooks.quantize_blockwise(
        x, book, block, "bitsandbytes cuda"), ("bnb_nf4", "bnb_fp4")),
    "a table upside down": ("FP4", packed.FP4[::-1], ("bnb_fp4",)),
}  # fmt: skip
"""Of :mod:`fplab.stored.packed` what computes otherwise, and the layouts in which that shows."""
LAYOUT_CASES = [(name, what) for what, (_, _, names) in LAYOUTS_OTHERWISE.items() for name in names]


@pytest.mark.parametrize(("name", "what"), LAYOUT_CASES)
def test_what_packs_otherwise_shows(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first 250 rows of the corpus, which are as many elements as 2,000 of a block of 32."""
    own = [make() for make in operations.stored(name, 250, 1)]
    for v in own:
        for x, y in zip([v.columns[n] for n in v.results], results_again(v), strict=True):
            np.testing.assert_array_equal(x, y)
    attribute, other, _ = LAYOUTS_OTHERWISE[what]
    monkeypatch.setattr(packed, attribute, other)
    assert any((x != y).any() for v in own for x, y in zip([v.columns[n] for n in v.results], results_again(v),
                                                           strict=True))  # fmt: skip


def test_every_layout_has_vectors_and_something_that_shows_in_them() -> None:
    assert {name for name, _ in LAYOUT_CASES} == {name for name, one in PACKED.items() if one.decoder}
    one = vectors.packings("pack_quantized", bits=3, rows=5)
    w = one.columns["x"][1].view(np.float32).reshape(one.about["outputs"], one.about["inputs"])
    parts = PACKED["pack_quantized"].encode(w, bits=3, group=one.about["group"], zero_point=True)
    assert one.about["shared"] == {"weight_shape": [8, 32]}
    for name, shape in one.about["shapes"].items():
        assert parts[name].shape == tuple(shape)
        assert parts[name].tobytes() == one.columns[name][1].tobytes(), name
    refusals.refuses(
        lambda: vectors.packings("awq", bits=3), "there are no vectors of awq with bits=3, zero_point=True"
    )
    refusals.refuses(lambda: vectors.packings("torchao_int4"), "torchao_int4 is written by")


READER = """
import struct, sys
for line in sys.stdin:
    data = bytes(int(cell, 16) for cell in line.split())
    (d,), codes = struct.unpack("<e", data[:2]), struct.unpack("<32{code}", data[2:])
    words = (struct.unpack("<I", struct.pack("<f", d * code))[0] for code in codes)
    print(*(f"{{0x7FC00000 if word & 0x7FFFFFFF > 0x7F800000 else word:08X}}" for word in words))
"""


@pytest.mark.parametrize(("code", "right"), [("b", True), ("B", False)])  # codes with a sign and without
def test_a_reader_of_a_stored_format_is_tested(code: str, right: bool, tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text(READER.format(code=code), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "reader.py")]
    found = vectors.conform(vectors.program(command), vectors.packings("q8_0", read=True, rows=300))
    assert found.rows == 300
    assert (found.agreed == 300) == right
    assert found.agreed > 0


def test_files_are_read_back_and_are_the_same_bytes_everywhere(tmp_path: Path) -> None:
    """The digests are those of x86-64 and of every other machine; a change of them changes what others have."""
    made = {
        "b2c4": vectors.products("B200", "nvfp4", rows=60, seed=3),
        "c0de": vectors.conversions("fp32", "e4m3", rows=200, seed=3),
        "beef": vectors.quantisations("mxfp4", rows=50, seed=3),
        "cafe": vectors.packings("q4_0", rows=40, seed=3),
        "fade": vectors.packings("q4_k", read=True, rows=9, seed=3),
        "gptq": vectors.packings("gptq", bits=3, rows=9, seed=3),
        "bnb4": vectors.packings("bnb_nf4", rows=9, seed=3),
        "llm8": vectors.packings("llm_int8", read=True, rows=9, seed=3),
    }
    for one in made.values():
        for path in one.save(tmp_path):
            if path.suffix != ".bin":
                again = vectors.read(path)
                assert (again.lines, again.reasons, again.formats) == (one.lines, one.reasons, one.formats)
                assert again.packed("npz") == one.packed("npz")
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in sorted(tmp_path.iterdir())}
    assert {n: d for n, d in digests.items() if n.endswith((".txt", ".bin"))} == DIGESTS


DIGESTS = {
    "convert-fp32-e4m3.bin": "55872aaf204c169c",
    "convert-fp32-e4m3.txt": "2efced33ba51c782",
    "product-b200-tcgen05.k64-nvfp4-fp32.bin": "cfdcd1bb21e8a426",
    "product-b200-tcgen05.k64-nvfp4-fp32.txt": "335c352d831ff5f8",
    "quantise-mxfp4-floor-torchao.bin": "29eb6e2f1503f657",
    "quantise-mxfp4-floor-torchao.txt": "06a73ffdaa366d06",
    "read-llm_int8.bin": "25ad393225de5b9a",
    "read-llm_int8.txt": "c9fbff43a2ae4c5b",
    "read-q4_k.bin": "c9790a3a6d1ba13e",
    "read-q4_k.txt": "187a11e8f7d72dc5",
    "store-bnb_nf4.bin": "305bd9592cd18351",
    "store-bnb_nf4.txt": "ae413a3d8e389bcd",
    "store-gptq-3-zero.bin": "a32836f8e946af7a",
    "store-gptq-3-zero.txt": "8b0b6b675f2bb5c7",
    "store-q4_0.bin": "15de865c3ced664e",
    "store-q4_0.txt": "6b3ed6c429c95377",
}


def test_one_command_makes_the_whole_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    makers = list(operations.every(20, 1))
    assert len(makers) >= 133 + 24 + 15 * 15 + 40 + 2 * len(STORED) + 2 * 26
    monkeypatch.setattr(operations, "every", lambda rows, seed: makers[:1] + makers[157:158] + makers[-1:])
    assert cli.main(["vectors", "--all", "--rows", "20", "--kinds", "txt", "--out", str(tmp_path)]) == 0
    manifest = json.loads((tmp_path / "MANIFEST.json").read_text(encoding="utf-8"))
    assert {n: hashlib.sha256((tmp_path / n).read_bytes()).hexdigest() for n in manifest["sha256"]} == manifest[
        "sha256"
    ]
    assert len(manifest["sha256"]) == 3
    assert "3 files" in capsys.readouterr().out


def test_the_command_says_what_shows(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["vectors", "--unit", "H100", "--format", "tf32", "--out", str(tmp_path), "--kinds", "bin"]) == 0
    said = capsys.readouterr().out
    assert "2,000 rows; of 60 units that decide one thing otherwise 60 differ in the first 2,000." in said
    assert cli.main(["vectors", "--convert", "fp32", "bf16", "--out", str(tmp_path)]) == 0
    assert cli.main(["vectors", "--quantiser", "nvfp4", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert cli.main(["vectors", "--stored", "nf4", "--out", str(tmp_path), "--kinds", "txt"]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == ["store-nf4.txt", "read-nf4.txt"]


@pytest.mark.parametrize(
    ("words", "text"),
    [([], "one of --unit, --convert, --quantiser, --stored and --all says what there shall be vectors"),
     (["--unit", "H100", "--all"], "one of --unit, --convert, --quantiser, --stored and --all"),
     (["--stored", "q9_0"], "unknown stored format 'q9_0'"),
     (["--unit", "H900"], "unknown GPU 'H900'"),
     (["--unit", "H100", "--rows", "0"], "rows=0 is not possible"),
     (["--unit", "H100", "--seed", "-1"], "seed=-1 is not possible"),
     (["--convert", "fp32", "fp33"], "unknown format 'fp33'"),
     (["--quantiser", "mxfp5"], "unknown scheme 'mxfp5'"),
     (["--quantiser", "mxfp4", "--rule", "best"], "unknown rule")],
)  # fmt: skip
def test_the_command_refuses(words: list[str], text: str, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["vectors", *words, "--out", str(tmp_path)]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x.txt", "x.npz", "x.json"])
def test_damaged_and_foreign_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    refusals.refuses(lambda: vectors.read(path), "cannot read vectors")
    for data in (b"", b"not one of ours\n", b"# {}\n", b'# {"version": 1}\n1 2 # tie\n', b"\xff\xfe", b"[" * 9999):
        path.write_bytes(data)
        refusals.refuses(lambda: vectors.read(path), "are refused|cannot read")
    one = vectors.products("V100", rows=20)
    one.save(tmp_path)
    own = tmp_path / f"{one.name}{path.suffix}"
    rng, whole = np.random.default_rng(0), (own if path.suffix != ".json" else own.with_suffix(".bin")).read_bytes()
    target = own if path.suffix != ".json" else own.with_suffix(".bin")
    for _ in range(60):
        cut = bytearray(whole)
        if rng.random() < 0.5:
            cut = cut[: rng.integers(1, len(cut))]
        else:
            cut[rng.integers(len(cut))] ^= 1 << int(rng.integers(8))
        target.write_bytes(bytes(cut))
        with contextlib.suppress(LabError):  # else a name or a reason was hit
            again = vectors.read(own)
            assert {k: v.tolist() for k, v in again.columns.items()} == {k: v.tolist() for k, v in one.columns.items()}


def test_a_stochastic_rounding_says_its_word() -> None:
    found = vectors.conversions("fp32", "e4m3")
    at = found.about["rounding"].index("stochastic")
    own = found.columns["rounding"] == at
    assert found.columns["word"][own].any()
    assert not found.columns["word"][~own].any()
    x, word, y = (found.columns[n][own][2] for n in ("x", "word", "y"))
    policy = found.about["overflow"][int(found.columns["overflow"][own][2])]
    code, _ = exact.round_to(exact.decode(int(x), "fp32"), "e4m3", "stochastic", policy, word=int(word))
    assert code == int(y)
