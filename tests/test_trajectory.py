"""The run whose every bit is known: it twice, its claims, its GPU cases, and that its checks can fail."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
import torch
from experiment_frame import computed_on_cpu, frame

from fplab.errors import LabError
from fplab.experiments import trajectory
from fplab.experiments.base import Status, same_bits
from fplab.experiments.trajectory import cases, checks, loop, ops, step
from fplab.hardware.cases import Arrays
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


# --- that a check can fail -------------------------------------------------------------------------------------


def changed(arrays: Arrays, name: str, at: Any, value: Any) -> Arrays:
    copy = {key: x.copy() for key, x in arrays.items()}
    copy[name][at] = value
    return copy


@pytest.mark.parametrize(
    ("name", "at", "value", "claim", "text"),
    [
        ("digests", (-1, 100), 7, "torch's own", "digests differ from step 100 on: 7 against"),
        ("final", (-1, 9000), 7, "torch's own", "1 of the last weights differ"),
        ("scales", (-1, 50), 3.0, "torch's own", "scales differ from step 50 on"),
        ("scales", (0, 50), 3.0, "the loss scale", "V100, step 50: 3, torch 1.04858e+06"),
        ("skipped", (1, 60), True, "a skipped step", "A100: step 60 does otherwise"),
        ("apart", (1, 70), 0, "GPUs of different families", "A100-H100: 1 updates leave no difference"),
        ("apart", (1, 0), 1, "GPUs of different families", "A100-H100: 0 updates leave no difference"),
        ("right", (1, 0), 300, "they all learn", "of 359 test digits right: V100 331, A100 300, H100 332"),
    ],
)
def test_a_changed_bit_fails_its_claim(arrays, name, at, value, claim, text):
    check = next(c for c in trajectory.CHECKS if c.claim.startswith(claim))
    outcome = check.check(changed(arrays, name, at, value), trajectory.QUICK)
    assert outcome.status is Status.FAIL
    assert text in outcome.detail


def truncating_cast(_self: Any, x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float16)


def exact_product(_self: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)


@pytest.mark.parametrize(
    ("owner", "attribute", "wrong"),
    [
        (ops.LabOps, "half", truncating_cast),
        (ops.LabOps, "times", lambda _self, x, f: (x.astype(np.float64) * f * (1 + 2.0**-20)).astype(x.dtype)),
        (ops.LabOps, "add", lambda _self, a, b: (a.astype(np.float64) + b * (1 + 2.0**-10)).astype(a.dtype)),
        (ops.LabOps, "product", exact_product),
    ],
    ids=["truncating casts", "products", "sums", "exact matrix products"],
)  # fmt: skip
def test_a_wrong_operation_is_found_by_torch_or_by_fractions(arrays, monkeypatch, owner, attribute, wrong):
    monkeypatch.setattr(owner, attribute, wrong)
    try:
        outcome = checks.fractions_agree(arrays, trajectory.QUICK)
    except AssertionError:
        return
    assert outcome.status is Status.FAIL


def test_a_wrong_backward_pass_is_found_by_autograd(arrays, monkeypatch):
    right = step.forward_and_backward

    def wrong(*given: Any) -> Any:
        found = right(*given)
        return found._replace(g2=found.g2 * 1.001)

    monkeypatch.setattr(checks, "forward_and_backward", wrong)
    assert checks.backward_is_autograd_s(arrays, trajectory.QUICK).status is Status.FAIL


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
