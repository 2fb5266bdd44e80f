"""Units inferred from outputs alone: the table's, random ones, libraries', a user's, and what is no product."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from prove.inferred import QUICK, Array, box, check_named, check_recovered, rows, synthetic
from refusals import refuses

import fplab
from fplab.errors import LabError
from fplab.exact import floor_log2
from fplab.formats import get as format_of
from fplab.reveal import SumTree
from fplab.tensorcore import Inference, Model, ParametricUnit, classes, dot, get, infer, separate
from fplab.tensorcore.models import input_name
from fplab.tensorcore.parametric import exact_sum


# Those that were not once; `make prove` recovers two hundred, a slice of it in test_prove the first.
@pytest.mark.parametrize("seed", [2, 6, 55, 56, 166])
def test_random_units_are_recovered(seed: int) -> None:
    check_recovered(seed)


def algorithm(model: Model) -> tuple[Any, ...]:
    return model.kind, model.length, model.alignment_bits, model.output, model.subnormals, model.k


HELD = {algorithm(m) for m, *_ in classes()[:QUICK]}  # by the slice of the proof in test_prove
ALGORITHMS = {algorithm(m): m for m, *_ in classes() if algorithm(m) not in HELD}


@pytest.mark.parametrize("model", ALGORITHMS.values(), ids=lambda m: m.name)
def test_every_algorithm_of_the_table_is_named(model: Model) -> None:
    check_named(model)


UNIT = ParametricUnit("bf16", "bf16", "fp32", 4, "split", 2, alignment_bits=21, kept_bits=20, rounding="rtz")


@functools.cache
def of_unit() -> Inference:
    found = infer(box(UNIT), "bf16")
    assert found.scheme == UNIT
    return found


@pytest.mark.parametrize(
    "field",
    ["alignment_bits", "alignment", "normalised", "kept_bits", "rounding", "joins", "products", "flush_inputs",
     "flush_products", "flush_results", "length", "parts", "reverse"],
)  # fmt: skip
def test_a_unit_with_one_parameter_off_is_told_apart(field: str) -> None:
    """And the evidence holds: a question that the one answers so and the other does not."""
    unit, one = UNIT, of_unit()
    other: Any = {"alignment": "rtn", "rounding": "rne", "joins": "rtz", "products": "rounded"}.get(field)
    if other is None:
        value = getattr(unit, field)
        other = not value if isinstance(value, bool) else value + 1
    changed = dataclasses.replace(unit, **{field: other})
    assert infer(box(changed), "bf16").scheme == changed
    if field in {e.field for e in one.evidence}:
        proofs = [e for e in one.evidence if e.field == field and other in e.refuted]
        for e in proofs:
            assert (
                float(unit.dot(e.a[None], e.b[None], [e.c])[0])
                == e.d
                != float(changed.dot(e.a[None], e.b[None], [e.c])[0])
            )


# --- units that nobody here wrote ----------------------------------------------------------------------------------
def backwards(a: Array, b: Array, c: Array) -> Array:
    """A user's accelerator: FP32 sums of three products each, from the right, onto c."""
    products, total = a * b, c.copy()
    for end in range(a.shape[1], 0, -3):
        part = np.zeros(len(a), np.float32)
        for k in range(end - 1, max(end - 4, -1), -1):
            part = part + products[:, k]
        total = total + part
    return total


def test_a_users_accelerator() -> None:
    found = infer(backwards, "fp32")
    scheme = found.scheme
    assert scheme is not None
    assert (scheme.order, scheme.parts, scheme.length, scheme.reverse, scheme.c) == ("promoted", 3, 1, True, "first")
    assert "promoted 3, 1 products a step, k descending, c first" in str(found)
    assert (scheme.products, scheme.rounding, scheme.joins, scheme.kept_bits) == ("rounded", "rne", "rne", 23)
    assert not found.equals
    a, b, c = np.random.default_rng(0).standard_normal((3, 50, 50)).astype(np.float32)
    assert np.array_equal(found.dot(a, b, c[:, 0]), backwards(a, b, c[:, 0]))
    assert "promoted 3, 1 products a step, k descending, c first" in str(found)


def test_numpys_matrix_product() -> None:
    """Whatever order BLAS takes for this size, the record computes it, or says that it does not know it."""
    found = infer(np.matmul, "fp32")
    assert found.scheme is not None
    assert found.scheme.c == "none"
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((16, 64), np.float32), rng.standard_normal((64, 16), np.float32)
    assert found.places is not None  # OpenBLAS adds rows 6 to 11 of 16 otherwise on a CPU with AVX2 alone
    same = found.dot(np.repeat(a, 16, axis=0), np.tile(b.T, (16, 1))).reshape(16, 16) == np.matmul(a, b)
    assert same[found.places].all()
    assert not same[~found.places].all() or found.places.all()
    assert found.places.all() != ("The place in a matrix decides" in str(found))


def test_an_order_that_depends_on_the_place_in_a_matrix() -> None:
    def product(a: Any, b: Any) -> Any:
        d = scan(a, b)
        d[5:, 3:] = scan(a[5:, ::-1], b[::-1, 3:])
        return d

    def scan(a: Any, b: Any) -> Any:
        d = np.zeros((len(a), b.shape[1]), np.float32)
        for k in range(a.shape[1]):
            d += a[:, k, None] * b[k]
        return d

    found = infer(product, "fp16")
    assert found.scheme is not None
    assert (found.scheme.order, found.scheme.reverse, found.scheme.c) == ("chain", False, "none")
    assert found.places is not None
    assert not found.places[5:, 3:].any()
    assert found.places.sum() == 256 - 11 * 13
    assert "is the arithmetic of 113 of the 256 elements of a result, the first among them" in str(found)


@pytest.mark.parametrize("fmt", ["fp32", "bf16"])
def test_torchs_matrix_product(fmt: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[fmt]

    def product(a: Array, b: Array) -> Any:
        return (torch.from_numpy(a).to(dtype) @ torch.from_numpy(b).to(dtype)).float()

    try:
        found = infer(product, fmt, fmt)
    except LabError as error:
        pytest.skip(f"what torch calls on this CPU is no sum of steps: {error}")
    a, b = (np.asarray(fplab.quantize(x, fmt)) for x in np.random.default_rng(2).standard_normal((2, 16, 64)))
    want = product(a, np.ascontiguousarray(b.T)).numpy()
    assert np.array_equal(found.dot(np.repeat(a, 16, axis=0), np.tile(b, (16, 1))).reshape(16, 16), want)
    assert found.evidence


def test_forms_of_a_product() -> None:
    """Rows, matrices and vectors, with c and without, of one unit."""
    unit = ParametricUnit("fp16", "fp16", "fp32", 4, alignment_bits=22, rounding="rtz")
    rowed = lambda a, b, c: unit.dot(a, b, c)  # noqa: E731

    def matrices(a: Array, b: Array, c: Array) -> Array:
        return np.stack([unit.dot(np.tile(row, (len(z), 1)), b.T, z) for row, z in zip(a, c, strict=True)])

    forms: list[Any] = [rowed, matrices, lambda a, b, c: unit.dot(a[None], b[None], [c])[0]]
    for f in forms:
        assert infer(f, k=16).scheme == unit
    assert infer(lambda a, b: unit.dot(a, b), k=16).scheme == dataclasses.replace(unit, c="none")


# --- what is no product --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("f", "text"),
    [
        ("dot", "f='dot' is not callable; it must take a, b and c, or a and b, and return their product"),
        (
            lambda a, b, c: a,
            r"f takes no form of a product. Allowed.*rows: a and b \(N, K\).*f returned shape \(3, 64\)",
        ),
        (lambda a, b, c: None, "f returned None; it must return its result"),
        (lambda a, b, c: np.full(len(a), np.nan), "f gives NaN for finite operands: 0.0"),
        (lambda a, b, c: (a * b).sum(1) + c + 1, "f gives 65 for 64 products of 1 and 1 and c = 0; a product gives 64"),
        (lambda a, b, c: (a * b).max(1) * 64 + c, "no order of its additions can be seen"),
        (lambda a, b, c: np.sort((a * b) ** 2, 1).sum(1) + c, "no order of its additions|no arithmetic that is known"),
    ],
)
def test_what_is_no_product_is_refused(f: Any, text: str) -> None:
    with pytest.raises(LabError, match=text) as caught:
        infer(f)
    assert str(caught.value).startswith("fplab.tensorcore.infer(")


def test_what_changes_from_call_to_call_is_refused() -> None:
    calls = itertools.count()

    def restless(a: Array, b: Array, c: Array) -> Array:
        return np.asarray(
            (a * b).sum(1) + c + (1 + next(calls) % 2) * np.float32(2**-20) * (np.count_nonzero(a) < len(a) * 20)
        )

    refuses(lambda: infer(restless), r"asked again|no fixed order|does not add in one order|gives .* for 64 products")


def test_bad_arguments() -> None:
    refuses(lambda: infer(backwards, k=3), "k=3 is not possible; allowed: 8 to 4096")
    with pytest.raises(LabError, match="order='zigzag' is not possible; allowed: chain, pairwise"):
        ParametricUnit("fp16", "fp16", "fp32", order="zigzag")
    with pytest.raises(LabError, match="this order is known for 3 products, and k=4"):
        ParametricUnit("fp16", "fp16", "fp32", order=SumTree.of((0, (1, 2))), c="none").dot(
            np.ones((1, 4)), np.ones((1, 4))
        )
    with pytest.raises(LabError, match=r"a has shape \(2, 3\) and b \(2, 4\)"):
        ParametricUnit("fp16", "fp16", "fp32").dot(np.ones((2, 3)), np.ones((2, 4)))


# --- the record computes what its words say ------------------------------------------------------------------------
def slowly(scheme: ParametricUnit, a: Array, b: Array, c: float) -> float:
    """The definition on Fractions: every node of the tree, in turn."""
    fa, fb, fd, sums = (*map(format_of, (scheme.a, scheme.b, scheme.output)), scheme.sums)
    k, tree = len(a), scheme.tree(len(a))

    def exponent(x: Fraction, emin: int) -> int:
        return max(floor_log2(abs(x)), emin) if x else emin

    def to_grid(x: Fraction, quantum: Fraction, rounding: str) -> Fraction:
        down, rest = divmod(x / quantum, 1)
        tie, above = rest * 2 == 1, rest * 2 > 1
        up = {"rtn": False, "rtp": rest > 0, "rtz": x < 0 and rest > 0, "rna": above or (tie and x > 0),
              "rne": above or (tie and down % 2 == 1)}[rounding]  # fmt: skip
        return (down + up) * quantum

    def fitted(x: Fraction, form: Any, rounding: str) -> Fraction:
        return to_grid(x, Fraction(2) ** (exponent(x, form.emin) - form.fraction_bits), rounding)

    def settled(x: Fraction, rounding: str) -> Fraction:
        x = fitted(x, sums, rounding)
        return Fraction(0) if scheme.flush_results and abs(x) < Fraction(2) ** sums.emin else x

    def operand(x: float, form: Any) -> Fraction:
        value = Fraction(float(x))
        return Fraction(0) if scheme.flush_inputs and abs(value) < Fraction(2) ** form.emin else value

    terms: list[tuple[Fraction, int]] = []
    alone = scheme.products == "rounded" or (scheme.length == 1 and scheme.order in ("pairwise", "groups"))
    for x, y in ((operand(p, fa), operand(q, fb)) for p, q in zip(a, b, strict=True)):
        product = x * y
        if scheme.flush_products and abs(product) < Fraction(2) ** sums.emin:
            product = Fraction(0)
        if alone:
            product = settled(product, scheme.rounding)
            terms.append((product, exponent(product, sums.emin)))
        else:
            e = exponent(product, -400) if scheme.normalised else exponent(x, fa.emin) + exponent(y, fb.emin)
            terms.append((product, e))
    if scheme.c != "none":
        z = operand(c, fd)
        terms.append((z, exponent(z, sums.emin)))
    for children in tree.nodes:
        step = any(i < k for i in children)
        if scheme.length == 1 and not alone and len(children) == 2 and max(children) < k:
            first = children[-1 if scheme.reverse else 0]
            value = settled(terms[first][0], scheme.rounding)
            terms[first] = value, exponent(value, sums.emin)
        parts = [terms[i] for i in children]
        if step and scheme.alignment_bits is not None and any(v for v, _ in parts):
            quantum = Fraction(2) ** (max(e for v, e in parts if v) - scheme.alignment_bits)
            parts = [(to_grid(v, quantum, scheme.alignment), e) for v, e in parts]
        total = settled(sum((v for v, _ in parts), Fraction(0)), scheme.rounding if step else scheme.joins)
        terms.append((total, exponent(total, sums.emin)))
    return float(fitted(settled(terms[-1][0], scheme.rounding), fd, scheme.store))


@pytest.mark.parametrize("seed", range(40))
def test_the_fast_record_is_the_slow_one(seed: int) -> None:
    scheme = synthetic(seed)
    for k, spread in ((7, 0), (16, 12), (33, 30)):
        a, b, c = rows(scheme, 4, k, seed)
        rng = np.random.default_rng(seed)
        a, b = (
            np.asarray(fplab.quantize(np.ldexp(x, -rng.integers(0, spread + 1, x.shape)), scheme.a)) for x in (a, b)
        )
        c = c if scheme.c != "none" else np.zeros(4)
        want = [slowly(scheme, *row) for row in zip(a, b, c, strict=True)]
        assert scheme.dot(a, b, c).tolist() == want


def test_special_operands() -> None:
    scheme = ParametricUnit("fp16", "fp16", "fp32")
    a = [[np.inf, 1], [np.inf, -np.inf], [np.nan, 1], [0, 1]]
    got = scheme.dot(a, np.ones((4, 2)), [0, 0, 0, np.inf])
    assert np.array_equal(got, [np.inf, np.nan, np.nan, np.inf], equal_nan=True)
    assert np.isinf(ParametricUnit("bf16", "bf16", "fp32").dot([[2.0**100]], [[2.0**100]])).all()


def test_sums_rounded_to_odd_round_as_once() -> None:
    rng = np.random.default_rng(5)
    terms = [np.ldexp(rng.integers(-(2**30), 2**30, 400).astype(float), rng.integers(-60, 60, 400)) for _ in range(5)]
    odd = exact_sum(terms)
    for n in range(400):
        total = sum((Fraction(float(t[n])) for t in terms), Fraction(0))
        nearest = float(total)  # Python rounds a Fraction once
        if Fraction(nearest) == total:
            assert odd[n] == nearest
        else:
            assert int(odd[n : n + 1].view(np.int64)[0]) & 1
            assert abs(Fraction(float(odd[n])) - total) < abs(Fraction(float(np.spacing(odd[n]))))


def test_an_answer_in_words() -> None:
    found = infer(lambda a, b, c: dot(a, b, c, gpu="V100"))
    text = str(found)
    assert text.startswith(
        f"{found.calls:,} calls of f, {found.rows:,} sums.\nIt computes as V100 mma.k4 fp16->fp32 of the table."
    )
    assert "bits after alignment to the largest term: 23" in text
    assert "Open: subnormal products taken for zeros; True would give the same for everything asked." in text


# --- fused blocks: what the table leaves open, and what no GPU of it has --------------------------------------------
def in_a_box(model: Model) -> Any:
    """A black box with a model in it, which takes block scales where the model has them."""
    return lambda a, b, c, *s: dot(a, b, c, gpu=model, **dict(zip(("scale_a", "scale_b"), s, strict=False)))


BLOCKS = [m for m, *_ in classes() if m.kind in ("block", "widened") and not m.scale and m.a == m.b]
FIELDS = ("kind", "length", "alignment_bits", "kept_bits", "rounding", "overflow", "negative_zeros", "zero_from_below")


@pytest.mark.parametrize("model", BLOCKS, ids=lambda m: m.name)
def test_every_fused_block_is_recovered_to_its_open_fields(model: Model) -> None:
    found = infer(in_a_box(model), model.a, model.output)
    assert model.name in found.equals
    for field in FIELDS:
        assert getattr(found.unit, field) == getattr(model, field), field
    assert "floor" in {one.field for one in found.open} or found.unit.floor == model.floor
    assert separate(model, found.unit) is None  # what is open no output shows


@pytest.mark.parametrize(
    ("cell", "option"),
    [
        (("A100", "fp16", "fp16"), {"c_exponent": "true"}),
        (("A100", "fp16", "fp16"), {"zero_from_below": "plus"}),
        (("H100", "bf16", "fp32"), {"overflow": "max"}),
        (("V100", "fp16", "fp32"), {"negative_zeros": "minus"}),
        (("A100", "fp16", "fp16"), {"c_exponent": "true", "alignment_bits": 22}),
        (("H100", "bf16", "fp32"), {"overflow": "max", "alignment_bits": 22}),
    ],
)
def test_answers_to_open_questions_are_recovered(cell: tuple[str, str, str], option: dict[str, Any]) -> None:
    model = dataclasses.replace(get(*cell), **option)
    found = infer(in_a_box(model), model.a, model.output)
    assert {name: getattr(found.unit, name) for name in option} == option
    assert not found.equals


def test_functionally_equal_models_are_named_together() -> None:
    """H100, H200, B200 and RTX PRO 6000 are one arithmetic for FP16."""
    found = infer(in_a_box(get("H200")))
    assert {name.split()[0] for name in found.equals} == {"H100", "H200", "B200", "RTXPRO6000"}


@pytest.mark.parametrize(("cell", "change", "k"), [
    (("A100", "fp16", "fp16"), {"alignment_bits": 22}, 16), (("T4", "fp16", "fp16"), {"alignment_bits": 22}, 8),
    (("A2", "tf32"), {"alignment_bits": 22}, 8), (("H100", "tf32", "fp32", "mma.k4"), {"alignment_bits": 22}, 4),
])  # fmt: skip
def test_the_length_of_an_instruction_is_found(cell: tuple[str, ...], change: dict[str, int], k: int) -> None:
    """By the sign of zero, which only a row of whole instructions keeps."""
    model = dataclasses.replace(get(*cell), **change)
    assert infer(in_a_box(model), model.a, model.output, k=40).unit.k == model.k == k


def test_interleaving_is_found() -> None:
    scheme = infer(in_a_box(get("H100", "e4m3", "fp16", "mma")), "e4m3", "fp16").scheme
    assert scheme is not None
    assert scheme.tree(64).nodes[0] == tuple(k for k in range(32) if k % 4 < 2)
    assert scheme.order == "halves"


OTHERS = [m for m, *_ in classes() if m not in BLOCKS]


@pytest.mark.parametrize("model", OTHERS, ids=lambda m: m.name)
def test_every_other_class_of_the_table_is_recovered(model: Model) -> None:
    """Mixed inputs, FP6 and FP4, block scales, INT8 and FP64: a member of the class comes out, and no other class."""
    found = infer(in_a_box(model), input_name(model), model.output if model.output in ("fp16", "fp32") else "fp32")
    assert model.name in found.equals
    seen = {"kind", "length", "alignment_bits", "kept_bits", "rounding", "saturate"} - {one.field for one in found.open}
    assert {name: getattr(found.unit, name) for name in seen} == {name: getattr(model, name) for name in seen}
    assert {"kind", "length", "kept_bits", "rounding", "saturate"} <= seen
    hidden = model.output == "fp16" or not model.alignment_bits  # 10 bits hide the crumbs of so narrow products
    assert "alignment_bits" in seen or hidden


@pytest.mark.parametrize(
    ("cell", "change", "inputs"),
    [
        (("B200", "nvfp4"), {"alignment_bits": 27}, "nvfp4"),
        (("B200", "nvfp4"), {"zero_group": "skipped"}, "nvfp4"),
        (("B200", "mxfp8_e4m3"), {"alignment_bits": 22}, "mxfp8_e4m3"),
        (("RTXPRO6000", ("e2m1", "e3m2")), {"alignment_bits": 23, "length": 8, "k": 8}, ("e2m1", "e3m2")),
        (("T4", "int8"), {"saturate": True}, "int8"),
        *((cell, {"alignment_bits": bits}, cell[1]) for cell in (("MI300X", "fp16"), ("MI300X", "e4m3fnuz"))
          for bits in (8, 16, 23, 26)),
    ],
)  # fmt: skip
def test_arithmetic_that_no_gpu_of_the_table_has(cell: Any, change: dict[str, Any], inputs: Any) -> None:
    found = infer(in_a_box(dataclasses.replace(get(*cell), **change)), inputs)
    assert {name: getattr(found.unit, name) for name in change} == change
    assert not found.equals
    assert all(agrees_on(found.unit, other, inputs) for one in found.open for other in one.others)


def agrees_on(unit: Any, other: Any, inputs: Any) -> bool:
    """Whether two records give the same for ordinary operands."""
    if unit.scale or unit.a == "int8":
        return True
    a, b = np.random.default_rng(3).integers(-3, 4, (2, 8, 64)).astype(np.float32)
    return bool(np.array_equal(dot(a, b, gpu=unit), dot(a, b, gpu=other)))


def test_formats_that_are_no_cell_are_refused() -> None:
    with pytest.raises(LabError, match="no arithmetic that is known here gives these outputs for 'int8'"):
        infer(lambda a, b, c: backwards(a, b, c) + 1, "int8")
    with pytest.raises(LabError, match="inputs='e2m1', output='fp64' is no cell of the table, nor like one"):
        infer(backwards, "e2m1", "fp64")
