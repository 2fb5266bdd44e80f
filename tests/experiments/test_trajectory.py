"""The run whose every bit is known: it twice, its claims, mutants that they kill, its GPU cases."""

import dataclasses
import hashlib
import io
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

from experiments.frame import Mutant, frame
from experiments.trajectory_by_fractions import PassByFractions, updates
from fplab.experiments import trajectory
from fplab.experiments.outcomes import Status, same_bits
from fplab.experiments.trajectory import E, by_lab, by_torch, cases
from fplab.hardware.programs import Rounded, cast
from fplab.hardware.tensors import bits

QUICK = E.quick
TINY = dataclasses.replace(QUICK, steps=14, batch=32, hidden=32)
SHORT, NARROW = dataclasses.replace(QUICK, steps=60, hidden=32), dataclasses.replace(QUICK, batch=32, hidden=32)
TWELVE = dataclasses.replace(QUICK, steps=12)
CPU = {"kind": "cpu"}


def in_lab(**wrong: Any) -> Callable[[Any], Any]:
    """The lab's backend with another product or cast."""
    return lambda good: lambda gpu, plan=None: good(gpu, plan)._replace(**wrong)


def operation(wrong: Callable[[np.ndarray, Any], np.ndarray]) -> Callable[[Any], Any]:
    """An operation of rounded values that gives another number, in their format."""

    def fault(good: Any) -> Any:
        def done(x: Rounded, y: Any) -> Rounded:
            values = wrong(x.values.astype(np.float64), y.values if isinstance(y, Rounded) else y)
            return dataclasses.replace(good(x, y), values=trajectory.numeric.quantize(values, x.fmt))

        return done

    return fault


def truncating(x: Rounded, fmt: str) -> Rounded:
    if fmt == "fp32":
        return cast(x, fmt)
    with np.errstate(over="ignore"):
        cut = (x.values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float16)
    return Rounded(cut.astype(np.float32), fmt)


def exact(a: Rounded, b: Rounded) -> Rounded:
    with np.errstate(all="ignore"):
        return Rounded((a.values.astype(np.float64) @ b.values).astype(np.float16).astype(np.float32), "fp16")


def on_another_gpu(good: Any) -> Any:
    """A V100 with A100's bits after its first update: from a product on that no weight shows before."""
    done = []

    def lab(gpu: str, plan: Any = None) -> Any:
        def product(a: Rounded, b: Rounded) -> Rounded:
            done.append(gpu)
            late = gpu == "V100" and done.count("V100") > 8 * 8
            return good("A100" if late else gpu).product(a, b)

        return good(gpu, plan)._replace(product=product)

    return lab


def larger_second(good: Any) -> Any:
    """A backward pass whose second gradient is a little too large."""

    def wrong(*given: Any) -> Any:
        found = good(*given)
        return found._replace(g2=found.g2 * 1.001)

    return wrong


def spread_before(p: Any, pair: str) -> np.ndarray:
    """How many digits the weights of the step before the last differ by."""
    return trajectory.distances(*(trajectory.run_of(p, gpu).weights[:-1] for gpu in trajectory.PAIRS[pair]))[2]


SUM, TIMES = (f"fplab.hardware.programs.Rounded.__{name}__" for name in ("add", "mul"))
MUTANTS = (
    Mutant("truncating casts", ("torch_agrees",), "by_lab", in_lab(cast=truncating), params=TINY),
    Mutant("products that round twice", ("torch_agrees",), TIMES,
           operation(lambda x, y: (x * y * (1 + 2.0**-20)).astype(np.float32)), params=TINY),
    Mutant("sums of another number", ("torch_agrees",), SUM,
           operation(lambda x, y: x + y * (1 + 2.0**-10)), params=TINY),
    Mutant("exact matrix products", ("torch_agrees",), "run_of",
           lambda good: lambda p, gpu: trajectory.train(p, by_lab(gpu)._replace(product=exact)), params=TINY),
    Mutant("a V100 on A100's bits after the first update", ("torch_agrees",), "by_lab", on_another_gpu, params=TINY),
    Mutant("weights of the step before the last", ("torch_agrees",), "final",
           lambda good: lambda p, gpu: trajectory.run_of(p, gpu).weights[-2], params=TINY),
    Mutant("losses of another GPU", ("torch_agrees",), "traced",
           lambda good: lambda p, gpu: (*good(p, gpu)[:3], good(p, "A100")[3]), params=TINY),
    Mutant("answers of the first weights", ("torch_agrees",), "answers",
           lambda good: lambda p, gpu: trajectory.right(p, by_lab(gpu), trajectory.run_of(p, gpu).weights[0]),
           params=TINY),
    Mutant("growth a step too late", ("loss_scale",), "Machine",
           lambda good: lambda scale, growth_interval: good(scale, growth_interval=growth_interval + 1), params=SHORT),
    Mutant("overflows that are not seen", ("skipped_steps",), "finite", lambda good: lambda x: True,
           params=NARROW),
    Mutant("a wrong backward pass", ("backward",), "forward_and_backward", larger_second, params=TINY),
    Mutant("a V100 on A100's bits", ("families_part",), "by_lab",
           lambda good: lambda gpu, plan=None: good("A100" if gpu == "V100" else gpu, plan), params=SHORT),
    Mutant("distances of the step before the last", ("families_part",), "compared",
           lambda good: lambda p, pair: (*good(p, pair)[:2], spread_before(p, pair)), reuse=("run_of",)),
    Mutant("medians of the step before", ("families_part",), "compared",
           lambda good: lambda p, pair: (good(p, pair)[0], np.roll(good(p, pair)[1], 1), good(p, pair)[2]),
           reuse=("run_of",)),
    Mutant("a thirtieth of the rate", ("they_learn",), "learning_rate", lambda good: lambda p: 2.0**-10,
           params=NARROW),
    Mutant("a momentum that FP32 rounds", ("constants",), "MOMENTUM", lambda _: 0.9, params=TINY),
)  # fmt: skip

ASKED = dataclasses.replace(TINY, steps=9, batch=16, hidden=16)
globals().update(frame(trajectory, QUICK, MUTANTS, asked=ASKED))


# --- the run twice ----------------------------------------------------------------------------------------------
def test_its_last_bits_are_these_on_every_machine(result: Any) -> None:
    """From integers and kernels alone: the first 64 bits of the SHA-256 of 9,216 weights after 120 steps."""
    assert [f"{x:016x}" for x in result.digests[:, -1].values.tolist()] == [
        "e4c5af5dc7d968fb", "6bffc881f6bd0606", "f643a76c0a48f1aa",
    ]  # fmt: skip


def nobody_s() -> dict[str, np.ndarray]:
    """Large and small weights that nobody chose, so that casts meet subnormals, overflow and ties."""
    weights = {}
    for i, (rows, columns) in enumerate(trajectory.shapes(TINY)):
        raw = np.random.Philox(key=50 + i).random_raw(rows * columns)
        sign, exponent = raw >> np.uint64(63) << np.uint64(31), np.uint64(96) + raw % np.uint64(26)
        codes = sign | exponent << np.uint64(23) | raw >> np.uint64(40) & np.uint64(0x7FFFFF)
        weights[f"w{i + 1}"] = codes.astype(np.uint32).reshape(rows, columns)
    return weights


@pytest.mark.parametrize("weights", [trajectory.run_inputs(TINY), nobody_s()], ids=["first", "nobody's"])
@pytest.mark.parametrize("gpu", trajectory.GPUS)
def test_torch_and_the_lab_agree_on_every_tensor_and_every_step(gpu: str, weights: Any) -> None:
    with trajectory.determined():
        ours, theirs = (trajectory.whole_run(TINY, b, weights) for b in (by_lab(gpu), by_torch("cpu", gpu)))
    assert len(set(ours["digests"].tolist())) > 2
    for name, fmt in trajectory.run_formats(TINY).items():
        outcome = same_bits(theirs[name], ours[name], fmt)
        assert outcome.status is Status.PASS, f"{name}: {outcome.detail}"


def test_the_operations_agree_on_all_halves() -> None:
    """Every FP16 code through casts, sums and products with numbers, and relu of every code."""
    lab, torchs = by_lab("H100"), by_torch("cpu")
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    other = np.random.Philox(key=3).random_raw(1 << 16).astype(np.uint16).view(np.float16)
    singles = np.random.Philox(key=4).random_raw(1 << 16).astype(np.uint32).view(np.float32)

    def outputs(backend: trajectory.Backend) -> dict[str, Any]:
        x, y, f, g = (backend.load(a) for a in (every, other, singles, singles[::-1]))
        return {
            "add": x + y, "subtract": x - y, "times": x * trajectory.SKIP, "single": backend.cast(x, "fp32"),
            "half": backend.cast(f, "fp16"), "relu": trajectory.where_positive(x, x),
            "fp32 times": f * trajectory.MOMENTUM,
            "fp32 add": f + g, "fp32 subtract": f - g,
        }  # fmt: skip

    ours = outputs(lab)
    for name, theirs in outputs(torchs).items():
        outcome = same_bits(bits(theirs), trajectory.bits(ours[name]), ours[name].fmt)
        assert outcome.status is Status.PASS, f"{name}: {outcome.detail}"
    assert not np.signbit(ours["relu"].values).any()
    assert not np.isnan(ours["relu"].values).any()
    assert (trajectory.finite(lab.load(every)), trajectory.finite(torchs.load(every))) == (False, False)


def test_integers_and_fractions_give_the_same_bits(result: Any) -> None:
    """Tensors of the first step that does not overflow and the weights after it, element by element on fractions."""
    lab, at = by_lab("H100"), trajectory.first_update(result)
    x, targets = trajectory.examples("train")
    index = list(islice(trajectory.batches(QUICK, len(x)), at + 1))[at]
    x, targets, weights, scale = x[index], targets[index], trajectory.first_weights(QUICK), float(result.scales[-1, at])
    loaded = [lab.load(w) for w in weights]
    p = trajectory.Pass(*(
        t.values for t in trajectory.forward_and_backward(lab, loaded, lab.load(x), lab.load(targets), scale)
    ))  # fmt: skip
    halves = [cast(w, "fp16").values for w in loaded]
    elements = PassByFractions(p, x, targets, halves, scale, "H100").elements()
    for where, got, right in chain(elements, updates(weights, (p.g1, p.g2, p.g3), scale, at, "H100", QUICK)):
        assert got == right, where


# --- the GPU cases ----------------------------------------------------------------------------------------------
def test_the_run_s_case_is_a_claim_and_the_products_case_a_question() -> None:
    run, products = cases(TINY)
    assert not run.open
    assert products.open
    assert all(torch.is_tensor(x) for x in by_torch("cpu").load(np.zeros(2, np.float16)))


def test_the_model_is_that_of_the_record_s_device() -> None:
    run, _ = cases(TWELVE)
    volta, ampere, *hopper = (
        run.emulate(run.inputs(), {"kind": "cuda", "device": name, "capability": ""})["digests"].tolist()
        for name in ("Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA H100 80GB HBM3")
    )
    assert hopper[0] == hopper[1]
    assert len({tuple(x) for x in (volta, ampere, *hopper)}) == 3
    assert volta[0] == ampere[0] == hopper[0][0]  # the first steps overflow


def test_another_order_of_k_would_be_seen() -> None:
    """In the run's digests, and in the products, where the hypotheses say which order it was."""
    run, products = cases(TWELVE)
    given = products.inputs()
    right = products.emulate(given, CPU)
    long = [name for name, (_, _, k, _, _) in trajectory.product_shapes(TWELVE).items() if k >= 64]
    for text, hypothesis in products.hypotheses.items():
        other = hypothesis(given, CPU)
        assert all((other[name] != right[name]).any() for name in long), text
    given = run.inputs()
    digests = run.emulate(given, CPU)["digests"]
    for plan in ({"split_k": 2}, {"accumulators": 2}):
        assert (trajectory.in_lab(trajectory.whole_run, TWELVE, plan, given, CPU)["digests"] != digests).any()


@pytest.mark.parametrize("params", [QUICK, E.full], ids=["quick", "full"])
def test_runs_are_long_products_short_and_records_small(params: Any) -> None:
    """Records counted from the shapes: a few MB uncompressed."""
    assert params.steps >= 100
    assert all(k <= 256 and k % 16 == 0 for _, _, k, _, _ in trajectory.product_shapes(params).values())
    weights = sum(r * c for r, c in trajectory.shapes(params)) * 4 * len(trajectory.kept_steps(params))
    b, h = params.batch, params.hidden
    passes = 2 * 2 * (9 * b * h + 4 * b * 16 + h * 16 + h * h + 64 * h)
    assert weights + passes + params.steps * 13 < 2_500_000
    file = io.BytesIO()
    np.savez(file, **trajectory.product_inputs(params))
    assert file.tell() < 700_000


# --- the rest ---------------------------------------------------------------------------------------------------
def test_every_epoch_is_a_permutation_and_steps_end_where_they_should() -> None:
    params = dataclasses.replace(QUICK, steps=31)
    found = list(trajectory.batches(params, 640))
    assert len(found) == 31
    for epoch in range(3):
        whole = np.concatenate(found[10 * epoch : 10 * epoch + 10])
        assert (np.sort(whole) == np.arange(640)).all()
    assert (found[0] != found[10]).any()
    weights = trajectory.first_weights(params)
    assert [w.shape for w in weights] == list(trajectory.shapes(params))
    assert all(np.abs(w).max() <= 2.0 ** np.floor(np.log2(3 / len(w)) / 2) for w in weights)
    other = trajectory.first_weights(dataclasses.replace(params, seed=1))
    assert all((a != b).any() for a, b in zip(weights, other, strict=True))


def test_a_digest_is_of_every_weight_in_order() -> None:
    weights = np.arange(32 * 112, dtype=np.uint32)
    sha = hashlib.sha256(weights.astype("<u4").tobytes()).digest()
    assert trajectory.digest(weights).to_bytes(8, "little") == sha[:8]
    assert np.array_equal(np.concatenate([part.ravel() for part in trajectory.parts(TINY, weights)]), weights)
    assert [part.shape for part in trajectory.parts(TINY, weights)] == list(trajectory.shapes(TINY))


@pytest.mark.parametrize(("given", "text"),
                         [({"batch": 48}, "batch=48 is not possible; allowed: a power of two from 16 to 256"),
                          ({"hidden": 24}, "hidden=24 is not possible; allowed: a multiple of 16 from 16 to 256"),
                          ({"hidden": 512}, "hidden=512 is not possible")])  # fmt: skip
def test_sizes_that_would_not_do_are_refused(given: Any, text: str) -> None:
    refuses(lambda: trajectory.shapes(dataclasses.replace(QUICK, **given)), text)
