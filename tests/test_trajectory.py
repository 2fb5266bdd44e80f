"""The run whose every bit is known: it twice, its claims, mutants that they kill, its GPU cases."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from experiment_frame import Mutant, computed_on_cpu, forged, frame, kills
from trajectory_by_fractions import PassByFractions, updates

from fplab.errors import LabError
from fplab.experiments import trajectory
from fplab.experiments.base import Status, same_bits
from fplab.experiments.trajectory import cases, loop, ops, step
from fplab.hardware.cases import Arrays, Case
from fplab.hardware.tensors import bits

TINY = loop.Params(steps=14, batch=32, hidden=32)
CPU = {"kind": "cpu"}

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(trajectory, trajectory.QUICK)


def test_the_run_is_as_long_as_the_claim_and_its_products_as_short(arrays):
    assert arrays["digests"].shape == (3, trajectory.QUICK.steps)
    for params in (trajectory.QUICK, trajectory.Params()):
        assert params.steps >= 100
        assert all(k <= 256 and k % 16 == 0 for _, _, k, _, _ in cases.product_shapes(params).values())


def test_its_last_bits_are_these_on_every_machine(arrays):
    """From integers and kernels alone: the first 64 bits of the SHA-256 of 9,216 weights after 120 steps."""
    assert [f"{x:016x}" for x in arrays["digests"][:, -1].tolist()] == [
        "e4c5af5dc7d968fb", "6bffc881f6bd0606", "f643a76c0a48f1aa",
    ]  # fmt: skip


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_torch_and_the_lab_agree_on_every_tensor_and_every_step(gpu):
    mine = cases.outputs(loop.train(TINY, ops.LabOps(gpu), np.asarray, loop.lab_bits))
    theirs = cases.outputs(cases.torch_trace(TINY, None, "cpu", gpu))
    assert mine.keys() == theirs.keys() == cases.formats(TINY).keys()
    for name, fmt in cases.formats(TINY).items():
        outcome = same_bits(theirs[name], mine[name], fmt)
        assert outcome.status is Status.PASS, f"{name}: {outcome.detail}"
    assert (mine["digests"] == theirs["digests"]).all()


def test_the_two_agree_from_weights_that_nobody_chose():
    """Large and small weights, so that casts meet subnormals, overflow and ties."""
    weights = []
    for i, shape in enumerate(loop.shapes(TINY)):
        raw = np.random.Philox(key=50 + i).random_raw(shape[0] * shape[1])
        sign, exponent = raw >> np.uint64(63) << np.uint64(31), np.uint64(96) + raw % np.uint64(26)
        codes = sign | exponent << np.uint64(23) | raw >> np.uint64(40) & np.uint64(0x7FFFFF)
        weights.append(codes.astype(np.uint32).view(np.float32).reshape(shape))
    mine = loop.train(TINY, ops.LabOps("H100"), np.asarray, loop.lab_bits, weights)
    theirs = cases.torch_trace(TINY, weights, "cpu")
    assert (mine.digests == theirs.digests).all()
    assert (mine.skipped == theirs.skipped).all()
    assert len(set(mine.digests.tolist())) > 2


def test_the_operations_agree_on_all_halves():
    """Every FP16 code through casts, sums and products with numbers, and relu of every code."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    x = codes.view(np.float16)
    y = np.random.Philox(key=3).random_raw(1 << 16).astype(np.uint16).view(np.float16)
    lab, theirs = ops.LabOps("H100"), ops.TorchOps()
    tx, ty = torch.from_numpy(x.copy()), torch.from_numpy(y.copy())
    f = np.random.Philox(key=4).random_raw(1 << 16).astype(np.uint32).view(np.float32)
    tf = torch.from_numpy(f.copy())
    pairs = {
        "add": (lab.add(x, y), theirs.add(tx, ty)), "subtract": (lab.subtract(x, y), theirs.subtract(tx, ty)),
        "times": (lab.times(x, step.SKIP), theirs.times(tx, step.SKIP)), "single": (lab.single(x), theirs.single(tx)),
        "half": (lab.half(f), theirs.half(tf)), "relu": (lab.where_positive(x, x), theirs.where_positive(tx, tx)),
        "fp32 times": (lab.times(f, step.MOMENTUM), theirs.times(tf, step.MOMENTUM)),
        "fp32 add": (lab.add(f, f[::-1].copy()), theirs.add(tf, tf.flip(0))),
        "fp32 subtract": (lab.subtract(f, f[::-1].copy()), theirs.subtract(tf, tf.flip(0))),
    }  # fmt: skip
    for name, (mine, other) in pairs.items():
        fmt = "fp16" if mine.dtype == np.float16 else "fp32"
        outcome = same_bits(bits(other), loop.lab_bits(mine), fmt)
        assert outcome.status is Status.PASS, f"{name}: {outcome.detail}"
    assert not np.signbit(lab.where_positive(x, x)).any()
    assert not np.isnan(lab.where_positive(x, x)).any()


# --- the GPU cases ----------------------------------------------------------------------------------------------------


def test_the_run_s_case_is_a_claim_and_the_products_case_a_question():
    run, products = trajectory.gpu_cases(TINY)
    assert not run.open
    assert products.open
    computed_on_cpu(run, nan_equal=True)
    computed_on_cpu(products, nan_equal=True)


@pytest.mark.parametrize("case", trajectory.gpu_cases(TINY)[1:], ids=lambda c: c.name)
def test_a_forged_record_does_not_pass(case: Case) -> None:
    forged(case)


def test_the_model_is_that_of_the_record_s_device():
    run, _ = trajectory.gpu_cases(dataclasses.replace(trajectory.QUICK, steps=12))
    given = run.inputs()
    found = {
        name: run.emulate(given, {"kind": "cuda", "device": name, "capability": ""})["digests"].tolist()
        for name in ("Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA H100 80GB HBM3")
    }
    volta, ampere, *hopper = found.values()
    assert hopper[0] == hopper[1]
    assert len({tuple(x) for x in found.values()}) == 3
    assert volta[0] == ampere[0] == hopper[0][0]  # the first steps overflow


def test_another_order_of_k_would_be_seen():
    """In the run's digests, and in the products, where the hypotheses say which order it was."""
    params = dataclasses.replace(trajectory.QUICK, steps=12)
    run, products = trajectory.gpu_cases(params)
    given = products.inputs()
    right = products.emulate(given, CPU)
    long = [name for name, (_, _, k, _, _) in cases.product_shapes(params).items() if k >= 64]
    for text, hypothesis in products.hypotheses.items():
        other = hypothesis(given, CPU)
        assert all((other[name] != right[name]).any() for name in long), text
    given = run.inputs()
    digests = run.emulate(given, CPU)["digests"]
    for plan in ({"split_k": 2}, {"accumulators": 2}):
        assert (cases.run_in_lab(params, plan, given, CPU)["digests"] != digests).any()


@pytest.mark.parametrize("params", [trajectory.QUICK, trajectory.Params()], ids=["quick", "full"])
def test_a_record_is_small(params):
    """Counted from the shapes: a few MB uncompressed."""
    weights = sum(r * c for r, c in loop.shapes(params)) * 4 * len(loop.kept_steps(params))
    b, h = params.batch, params.hidden
    passes = 2 * 2 * (9 * b * h + 4 * b * 16 + h * 16 + h * h + 64 * h)
    assert weights + passes + params.steps * 13 < 2_500_000
    file = io.BytesIO()
    np.savez(file, **trajectory.gpu_cases(params)[1].inputs())
    assert file.tell() < 700_000


# --- mutants ----------------------------------------------------------------------------------------------------------


def changed(name: str, at: Any, value: Any) -> Callable[[Arrays], Arrays]:
    """A change of one array."""

    def fault(arrays: Arrays) -> Arrays:
        arrays[name][at] = value
        return arrays

    return fault


def with_method(name: str, wrong: Callable[..., Any]) -> Callable[[Any], Any]:
    """The lab's operations with one of them replaced; ``wrong`` is given the operations and the operands."""
    return lambda kind: type("Mutant", (kind,), {name: wrong})


def truncating_cast(_self: Any, x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float16)


def exact_product(_self: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)


def on_another_gpu(kind: Any) -> Any:
    """A V100 with A100's bits after its first update: from a product on that no weight shows before."""
    done = []

    def product(self: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        done.append(self.gpu)
        late = self.gpu == "V100" and done.count("V100") > 8 * 8
        return (kind("A100") if late else kind(self.gpu)).product(a, b)

    return type("Mutant", (kind,), {"product": product})


def scaled_second(right: Any) -> Any:
    """A backward pass whose second gradient is a little too large."""

    def wrong(*given: Any) -> Any:
        found = right(*given)
        return found._replace(g2=found.g2 * 1.001)

    return wrong


TORCH, SKIPPED, PARTED = "torch's own", "a skipped step", "in this run the three families"
MUTANTS = (
    Mutant("truncating casts", (TORCH,), "LabOps", with_method("half", truncating_cast), params=TINY),
    Mutant("products that round twice", (TORCH,), "LabOps",
           with_method("times", lambda _, x, f: (x.astype(np.float64) * f * (1 + 2.0**-20)).astype(x.dtype)),
           params=TINY),
    Mutant("sums of another number", (TORCH,), "LabOps",
           with_method("add", lambda _, a, b: (a.astype(np.float64) + b * (1 + 2.0**-10)).astype(a.dtype)),
           params=TINY),
    Mutant("exact matrix products", (TORCH,), "LabOps", with_method("product", exact_product), params=TINY),
    Mutant("a V100 on A100's bits after the first update", (TORCH,), "LabOps", on_another_gpu, params=TINY),
    Mutant("another digest", (TORCH, SKIPPED), change=changed("digests", (-1, slice(100, None)), 7)),
    Mutant("one weight at the end", (TORCH,), change=changed("final", (0, 9000), 7)),
    Mutant("a loss of another run", (TORCH,), change=changed("losses", (1, 60), 0.5)),
    Mutant("a scale of its own", ("the loss scale",), change=changed("scales", (0, 50), 3.0)),
    Mutant("an overflow that was none", (SKIPPED,), change=changed("skipped", (1, 60), True)),
    Mutant("a wrong backward pass", ("the backward pass",), "checks.forward_and_backward", scaled_second, params=TINY),
    Mutant("families that meet again", (PARTED,), change=changed("apart", (1, 70), 0)),
    Mutant("distances one binade too high", (PARTED,),
           change=lambda arrays: {"spread": np.roll(arrays["spread"], 1, axis=1)}),
    Mutant("a GPU that reads worse", ("in this run all three",), change=changed("right", (1, 0), 300)),
    Mutant("a momentum that FP32 rounds", ("the constants",), "checks.MOMENTUM", lambda _: 0.9, params=TINY),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(trajectory, trajectory.QUICK, MUTANTS)


def test_integers_and_fractions_give_the_same_bits(arrays: Arrays) -> None:
    """Tensors of the first step that does not overflow and the weights after it, element by element on fractions."""
    params, lab = trajectory.QUICK, ops.LabOps("H100")
    at = int(np.flatnonzero(~arrays["skipped"][-1])[0])
    x, targets = loop.examples("train")
    index = list(islice(loop.batches(params, len(x)), at + 1))[at]
    x, targets, weights, scale = x[index], targets[index], loop.first_weights(params), float(arrays["scales"][-1, at])
    p = step.forward_and_backward(lab, weights, x, targets, scale)
    tensors = PassByFractions(p, x, targets, weights, scale, lab, params.batch).elements()
    for where, got, right in chain(tensors, updates(weights, p.gradients, scale, at, lab, params)):
        assert got == right, where


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_every_epoch_is_a_permutation_and_steps_end_where_they_should():
    params = loop.Params(steps=31, batch=64)
    found = list(loop.batches(params, 640))
    assert len(found) == 31
    for epoch in range(3):
        whole = np.concatenate(found[10 * epoch : 10 * epoch + 10])
        assert (np.sort(whole) == np.arange(640)).all()
    assert (found[0] != found[10]).any()
    weights = loop.first_weights(params)
    assert [w.shape for w in weights] == list(loop.shapes(params))
    assert all(np.abs(w).max() <= 2.0 ** np.floor(np.log2(3 / len(w)) / 2) for w in weights)
    other = loop.first_weights(dataclasses.replace(params, seed=1))
    assert all((a != b).any() for a, b in zip(weights, other, strict=True))


def test_a_digest_is_of_every_weight_in_order():
    a, b = np.arange(4, dtype=np.uint32), np.arange(4, 6, dtype=np.uint32)
    whole = loop.digest((a, b))
    assert whole == loop.digest((np.arange(6, dtype=np.uint32),))
    assert whole != loop.digest((b, a))
    assert 0 <= whole < 2**64


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch": 48}, "batch=48 is not possible; allowed: a power of two from 16 to 256"),
        ({"hidden": 24}, "hidden=24 is not possible; allowed: a multiple of 16 from 16 to 256"),
        ({"hidden": 512}, "hidden=512 is not possible"),
        ({"steps": 0}, "steps=0 is not possible; allowed: 1 to 1073741824"),
    ],
)
def test_sizes_that_would_not_do_are_refused(given, text):
    with pytest.raises(LabError, match=text):
        loop.Params(**given)


def test_the_figure_and_the_table(arrays):
    from fplab.draw.style import themed

    with themed("light"):
        figure = trajectory.plot(arrays, trajectory.QUICK)
    assert len(figure.axes) == 4
    table = trajectory.table(arrays, trajectory.QUICK)
    assert {len(column) for column in table.values()} == {trajectory.QUICK.steps}
    assert table["digest of the weights H100"][-1] == "f643a76c0a48f1aa"
