"""The experiment on one training run on four GPUs: its claims, its cases, and that its checks can fail."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from experiment_frame import frame

from fplab.draw.style import themed
from fplab.experiments import gpu_generations
from fplab.experiments.base import Status
from fplab.experiments.gpu_generations import cases, checks, data
from fplab.hardware.cases import Arrays

DEVICES = ("Tesla V100-SXM2-16GB", "NVIDIA H100 80GB HBM3")
SMALL = data.Params(steps=24, seeds=2)
SHORT = gpu_generations.CHECKS[:-1]  # the last claim needs more steps

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(gpu_generations, SMALL, SHORT)


def test_the_quick_run_learns() -> None:
    """The last claim needs more steps than the other tests."""
    ticks: list[float] = []
    quick = data.Params(steps=gpu_generations.QUICK.steps, seeds=1)
    found = gpu_generations.run(quick, lambda done, _text: ticks.append(done))
    assert checks.check_trained(found, quick).status is Status.PASS
    assert ticks == sorted(ticks)
    assert ticks[0] == 0
    assert ticks[-1] == 1


def test_runs_are_reproducible_and_differ_from_the_first_step(arrays: Arrays) -> None:
    short = data.Params(steps=2, seeds=1)
    again = gpu_generations.run(short, lambda _done, _text: None)
    assert (again["losses"] == arrays["losses"][:1, :, :2]).all()
    assert (again["differ"] == arrays["differ"][:1, :, :2]).all()
    assert (arrays["differ"][:, data.REFERENCE] == 0).all()
    assert (arrays["differ"][:, [0, 1, 5, 6], 0] > 0).all()
    assert (arrays["first"][data.RUNS.index("FP32")][:4] > 0.9).all()


def test_a_machine_takes_its_products_from_its_gpu() -> None:
    """The second layer's output too, which the checks do not follow."""
    from fplab.tensorcore import Plan, matmul
    from fplab.training.tasks import DIGITS_MLP

    batch = next(DIGITS_MLP.batches(0, 1))
    machine = data.Machine("A100", 0, SMALL)
    outputs, loss = machine.forward(batch)
    machine.backward(loss)
    w, bias = (p.detach().numpy() for p in list(machine.model.parameters())[2:4])
    hidden = np.maximum(outputs[0].detach().numpy(), 0)
    second = outputs[1].detach().numpy()
    assert (second == matmul(hidden, w.T, bias, gpu="A100", plan=Plan(c="epilogue"))).all()
    assert (second != matmul(hidden, w.T, bias, gpu="H100", plan=Plan(c="epilogue"))).any()
    grad = machine.model[0].weight.grad  # type: ignore[index, union-attr]
    assert 0 < float(grad.abs().max()) < 1, "scaled back"


def broken(arrays: Arrays, name: str, at: object, value: float) -> Arrays:
    """A copy of the results with some elements changed."""
    copy = arrays[name].copy()
    copy[at] = value
    return arrays | {name: copy}


def test_the_checks_can_fail(arrays: Arrays) -> None:
    i = data.RUNS.index
    bits = arrays["layer1"].copy()
    bits[:, 0, 0] ^= 1
    wrong = {
        checks.check_oracle: arrays | {"layer1": bits},
        checks.check_same_unit: broken(arrays, "losses", (0, i("B200"), 3), 1.0),
        checks.check_parting: broken(arrays, "first", (i("B200"), 2), 0.1),
        checks.check_growth: broken(arrays, "distance", (0, i("V100"), -1), 1e-9),
        checks.check_noise: broken(arrays, "distance", (1, i("A100"), -1), 1.0),
        checks.check_swallowed: broken(arrays, "first", (i("one weight"), 0), 0.1),
        checks.check_matters: broken(arrays, "right", (0, 0), 0),
        checks.check_trained: broken(arrays, "losses", (0, 0, -1), 9.0),
    }
    assert len(wrong) == len(gpu_generations.CHECKS)
    for check, given in wrong.items():
        assert check(given, SMALL).status is Status.FAIL, check.__name__


def test_the_table_has_a_row_for_each_run(arrays: Arrays) -> None:
    columns = gpu_generations.table(arrays, SMALL)
    assert {len(column) for column in columns.values()} == {2 * len(data.RUNS)}
    assert columns["run"][:2] == ["V100", "A100"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_draws(arrays: Arrays, theme: str) -> None:
    with themed(theme):
        figure = gpu_generations.plot(arrays, SMALL)
    assert len(figure.axes) == 6
    assert [text.get_text() for text in figure.axes[4].get_yticklabels()] == list(data.TENSORS)


def test_gpu_cases_ask_for_the_products_of_a_step() -> None:
    found = gpu_generations.gpu_cases(SMALL)
    assert len(found) == 8
    shapes = {c.name.removesuffix(", to fp16"): [x.shape for x in c.inputs().values()] for c in found[::2]}
    assert list(shapes.values()) == [[(128, 64), (256, 64)], [(128, 256), (256, 256)], [(128, 256), (256, 256)],
                                     [(256, 128), (256, 128)]]  # fmt: skip
    for case in found:
        given = case.inputs()
        assert all(x.dtype == np.uint16 and x.any() for x in given.values())
        assert set(case.compute(given, "cpu")) == set(case.emulate(given, {"kind": "cpu"})) == {"d"}
        assert bool(case.open) is ("= 64" not in case.name)
        volta, hopper = (case.emulate(given, {"kind": "cuda", "device": name})["d"] for name in DEVICES)
        assert case.name.endswith("fp16") or (volta != hopper).any(), "a GPU must be able to tell the models apart"


def test_the_operands_need_no_numba() -> None:
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite", "matplotlib"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from fplab.experiments import gpu_generations
for case in gpu_generations.gpu_cases(gpu_generations.QUICK):
    print(case.name, sorted(case.inputs()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * len(cases.NAMES)
