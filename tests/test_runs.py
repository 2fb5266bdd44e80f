"""Runs: what a killed run goes on to, what its file must be, and what stops it."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import refusals
import torch
from torch import nn

from fplab.errors import LabError
from fplab.training import DIGITS_MLP, Fit, StoppedError, checkpoints, fit, policies, tasks
from fplab.training.loop import one_thread
from fplab.training.policies import Made, Policy
from fplab.training.tasks import Batch, Task

ADAM = Made("optimizers", "AdamW", (("lr", 1e-3), ("weight_decay", 0.01)))


def narrow(name: str = "narrow", width: int = 16) -> Task:
    """The perceptron for the digits, small, so that a step of any policy takes a moment."""
    return tasks.perceptron(name=name, width=width)


def same_bits(one: Fit, two: Fit) -> None:
    for name in ("losses", "scales", "skipped"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes(), name
    assert one.scores == two.scores
    for a, b in zip(one.model.state_dict().values(), two.model.state_dict().values(), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


class StopHereError(Exception):
    """What stands for Ctrl-C."""


def stop_at(last: int):  # type: ignore[no-untyped-def]
    def progress(step: int, _steps: int) -> None:
        if step == last:
            raise StopHereError

    return progress


# --- a file's content -------------------------------------------------------------------------------------------
STATE = {
    "halves": torch.tensor([0x7E01, 0xFC00, 0x8000, 1], dtype=torch.uint16).view(torch.float16).reshape(2, 2),
    "brain": torch.tensor([-0.0, 1.5, float("nan")], dtype=torch.bfloat16),
    "eight": torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn),
    "number": torch.tensor(3, dtype=torch.int64),
    "empty": torch.zeros(0, 3),
    "strided": torch.arange(6.0).reshape(2, 3).T,
    "array": np.array([1.5, -0.0], np.float64),
    "nested": {0: [1, 2.5, "three", None, True], "t": (float("inf"), -0.0, {})},
}


def raw(value: object) -> object:
    """A state in which equal means equal bits."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), bytes(value.contiguous().reshape(-1).view(torch.uint8).tolist())
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: raw(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [raw(v) for v in value]
    return type(value), repr(value)


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "run", {"seed": 1}, STATE)
    assert raw(checkpoints.load(tmp_path / "run", {"seed": 1})) == raw(STATE)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_write_that_breaks_off_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "run"
    checkpoints.save(path, {}, {"step": 1})

    def half(file, **_arrays) -> None:  # type: ignore[no-untyped-def]
        file.write(b"PK")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="no space left"):
        checkpoints.save(path, {}, {"step": 2})
    assert checkpoints.load(path, {}) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_array_of_objects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="a checkpoint cannot hold an array of objects; allowed: arrays of numbers"):
        checkpoints.save(tmp_path / "run", {}, {"bad": np.array([object()])})
    assert not list(tmp_path.iterdir())


NO_JSON = "a checkpoint cannot hold what is no plain JSON or dense tensor, or holds itself: "


@pytest.mark.parametrize(
    ("state", "text"),
    [({"w": torch.ones(2, device="meta")}, f"{NO_JSON}NotImplementedError: Cannot copy out of meta tensor; no data!"),
     ({"w": torch.eye(2).to_sparse()}, f"{NO_JSON}RuntimeError: "),
     ({"f": print}, "a checkpoint cannot hold a builtin_function_or_method; allowed: tensors, arrays, dict, list, "),
     ({(1, 2): 3}, "a checkpoint cannot hold a dictionary with the key (1, 2); allowed: strings and integers."),
     (refusals.itself(), f"{NO_JSON}RecursionError: ")],
)  # fmt: skip
def test_what_json_and_arrays_cannot_hold_is_refused(state, text, tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LabError) as caught:
        checkpoints.save(tmp_path / "run", {}, state)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "other archive"])
def test_a_damaged_file_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    checkpoints.save(path, {}, {"weights": torch.arange(1000.0)})
    whole = path.read_bytes()
    at = whole.index(np.arange(1000, dtype=np.float32).tobytes())
    broken = {
        "cut": whole[:-100],
        "flipped": whole[: at + 9] + bytes([whole[at + 9] ^ 1]) + whole[at + 10 :],
        "empty": b"",
        "text": b"weights: 1, 2, 3",
        "other archive": None,
    }[damage]
    if broken is None:
        with path.open("wb") as file:
            np.savez(file, weights=np.arange(3))
    else:
        path.write_bytes(broken)
    with pytest.raises(LabError, match=r"run' is no checkpoint of a training run, or a damaged one \(.+\); delete it"):
        checkpoints.load(path, {})


def test_settings_that_only_one_side_has_are_another_run(tmp_path: Path) -> None:
    """A later release may add a setting, or an earlier one have had it: what the run was is not known then."""
    checkpoints.save(tmp_path / "run", {"seed": 1, "warmth": 2}, {"step": 1})
    with pytest.raises(LabError, match=r"is a checkpoint of another run: warmth is 2 in the file and None here\."):
        checkpoints.load(tmp_path / "run", {"seed": 1})
    checkpoints.save(tmp_path / "run", {"seed": 1}, {"step": 1})
    with pytest.raises(LabError, match=r"is a checkpoint of another run: warmth is None in the file and 2 here\."):
        checkpoints.load(tmp_path / "run", {"seed": 1, "warmth": 2})


def test_a_directory_is_refused_without_advice_to_delete_it(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    with pytest.raises(LabError) as caught:
        fit(narrow(), steps=1, checkpoint=tmp_path)
    assert str(caught.value).endswith(
        f": {str(tmp_path)!r} is a directory; a checkpoint is a file, such as {str(tmp_path / 'run.npz')!r}."
    )
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    taken: list[int] = []
    with pytest.raises(LabError, match=r"cannot write to '.*file': .* Name another folder\."):
        fit(narrow(), steps=1, checkpoint=tmp_path / "file" / "run.npz",
            progress=lambda step, _steps: taken.append(step))  # fmt: skip
    assert not taken


def test_another_layout_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"version": 0, "configuration": {}, "state": {"value": 1}})
    with (tmp_path / "run").open("wb") as file:
        np.savez(file, state=np.frombuffer(text.encode(), np.uint8))
    with pytest.raises(LabError, match=r"has layout 0; this release reads 1\. Delete it to begin again\."):
        checkpoints.load(tmp_path / "run", {})


# --- going on ---------------------------------------------------------------------------------------------------
MOVING = replace(policies.get("fp16_master"), name="moving",
                 scaler=policies.scaler("DynamicScaler", init_scale=2.0**24, growth_interval=5))  # fmt: skip
STOCHASTIC = Policy("stochastic", "", weights="bf16", states="bf16", update="stochastic")


@pytest.mark.parametrize(
    "policy", ["fp32", MOVING, STOCHASTIC, "fp8_hybrid"], ids=lambda p: p if isinstance(p, str) else p.name
)
def test_an_interrupted_run_goes_on_to_the_same_bits(policy: Policy | str, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    whole = fit(narrow(), policy, steps=13, seed=3, optimizer=ADAM)
    with pytest.raises(StopHereError):
        fit(narrow(), policy, steps=13, seed=3, optimizer=ADAM, checkpoint=path, every=4, progress=stop_at(10))
    steps = []
    done = fit(narrow(), policy, steps=13, seed=3, optimizer=ADAM, checkpoint=path, every=4,
               progress=lambda step, _: steps.append(step))  # fmt: skip
    assert steps == [9, 10, 11, 12, 13]  # from step 8, the last that was written
    same_bits(done, whole)
    steps.clear()
    same_bits(fit(narrow(), policy, steps=13, seed=3, optimizer=ADAM, checkpoint=path), whole)  # nothing left to do
    assert not steps
    if policy is MOVING:
        assert len(set(whole.scales[8:].tolist())) > 1  # it moved after the checkpoint, by steps counted before


def test_a_run_can_be_made_longer(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    fit(narrow(), steps=5, checkpoint=path)
    same_bits(fit(narrow(), steps=9, checkpoint=path), fit(narrow(), steps=9))
    with pytest.raises(LabError, match=r"run.npz' has 9 steps behind it; allowed: steps of at least that\."):
        fit(narrow(), steps=5, checkpoint=path)


class Dropping(nn.Module):
    """A model that draws from torch's generator at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(nn.functional.dropout(x, 0.5, self.training))


def dropping(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Dropping()


def test_a_run_with_dropout_goes_on_to_the_same_bits_and_leaves_the_generator_alone(tmp_path: Path) -> None:
    path, task = tmp_path / "run.npz", replace(DIGITS_MLP, name="dropping", model=dropping)
    before = torch.get_rng_state()
    whole = fit(task, steps=8)
    with pytest.raises(StopHereError):
        fit(task, steps=8, checkpoint=path, every=3, progress=stop_at(5))
    same_bits(fit(task, steps=8, checkpoint=path), whole)
    assert torch.equal(torch.get_rng_state(), before)


KILLED = """
import sys
from fplab.training import fit
fit("digits_mlp", "fp32", seed=4, steps=100000, checkpoint=sys.argv[1], every=1)
"""


def test_a_killed_process_leaves_a_whole_file_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL, twice, at moments nobody chose: while the run computes or while it writes."""
    path = tmp_path / "run.npz"
    reached = 0
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
        before = path.stat().st_mtime_ns if path.exists() else 0
        while not path.exists() or path.stat().st_mtime_ns == before:
            assert child.poll() is None
            time.sleep(0.01)
        time.sleep(0.05)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        with np.load(path, allow_pickle=False) as file:
            state = json.loads(file["state"].tobytes())["state"]
            now = len(file[dict(state["items"])["losses"]["array"]])
        assert now > reached  # each process went on from where the one before was killed
        reached = now
    steps = reached + 5
    seen: list[int] = []
    done = fit("digits_mlp", seed=4, steps=steps, checkpoint=path, progress=lambda step, _: seen.append(step))
    assert seen == list(range(reached + 1, steps + 1))
    same_bits(done, fit("digits_mlp", seed=4, steps=steps))
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]  # the parts that were left are swept away


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_and_a_file_does_not(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    fit(narrow(), steps=3)
    assert "narrow:   0%|" in shown.getvalue()
    assert "0/3" in shown.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    fit(narrow(), steps=3)
    assert sys.stderr.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_threads_change_no_bit() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threads: list[int] = []
        two = fit(narrow(), steps=6, progress=lambda _step, _steps: threads.append(torch.get_num_threads()))
        assert threads == [1] * 6
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    same_bits(two, fit(narrow(), steps=6))


def test_the_loop_is_the_formula() -> None:
    """FP32, plain SGD: w - lr * gradient, by hand, on the same batches."""
    made = Made("optimizers", "SGD", (("lr", 0.25),))
    run = fit(narrow(), steps=3, seed=1, optimizer=made)
    model = narrow().model(1)
    with one_thread():
        for step, batch in enumerate(DIGITS_MLP.batches(1, 3)):
            loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
            assert loss.item() == run.losses[step]
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.data = p.data - 0.25 * g
    for a, b in zip(model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(a, b)


# --- another run's file -----------------------------------------------------------------------------------------
OTHER = {
    "seed": ({"seed": 1}, "seed is 0 in the file and 1 here"),
    "policy": (
        {"policy": "tf32"},
        "policy name is 'fp32' in the file and 'tf32' here; policy products is None in the file and \"Products(",
    ),
    "task": (
        {"task": narrow(width=17)},
        "task is 'narrow, batch 128, width 16, hidden 2' in the file and 'narrow, batch 128, width 17, hidden 2'",
    ),
    "optimizer": ({"optimizer": ADAM}, "optimizer is \"Made(module='optimizers', name='SGD'"),
    "gpu": ({"gpu": "A100"}, "gpu is 'H100' in the file and 'A100' here"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER)
def test_a_file_of_another_run_is_refused_with_the_reason(what: str, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    fit(narrow(), steps=2, checkpoint=path)
    changed, reason = OTHER[what]
    held = path.read_bytes()
    with pytest.raises(LabError) as caught:
        fit(**({"task": narrow(), "steps": 2, "checkpoint": path} | changed))
    text = str(caught.value)
    call, _, rule = text.partition("): ")
    assert call.startswith("fplab.training.fit(task=")
    assert rule.startswith(f"{str(path)!r} is a checkpoint of another run: ")
    assert reason in text
    assert text.endswith("Name another file, or delete it.")
    assert path.read_bytes() == held


# --- what is not finite -----------------------------------------------------------------------------------------
class Exploding(nn.Module):
    """Its first layer's values are large from the start."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)
        nn.init.constant_(self.first.weight, size)
        nn.init.constant_(self.last.weight, 0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)))


def exploding(size: float) -> Task:
    return replace(DIGITS_MLP, name="exploding", model=lambda seed: Exploding(size))


def stopped(*args: object, **more: object) -> StoppedError:
    with pytest.raises(StoppedError) as caught:
        fit(*args, **more)  # type: ignore[arg-type]
    return caught.value


def test_an_overflow_in_a_layer_stops_the_run_with_the_layer() -> None:
    error = stopped(exploding(20000.0), "pure_fp16", steps=2)
    assert (error.step, error.tensor) == (0, "the loss")
    assert str(error).startswith(
        "step 0: the loss is NaN. Likely cause: layer 'first' overflows fp16, whose largest number is 65504: its "
        "inputs are finite, of magnitudes up to 1."
    ) or str(error).startswith("step 0: the loss is infinite. Likely cause: layer 'first' overflows fp16")
    assert fit(exploding(20000.0), "fp32", steps=1, optimizer=Made("optimizers", "SGD", (("lr", 1e-9),))).losses[0] > 0


def poisoned(where: int) -> Task:
    """Batches of which one holds a NaN."""

    def batches(seed: int, steps: int, start: int = 0):  # type: ignore[no-untyped-def]
        for step, (inputs, targets) in enumerate(DIGITS_MLP.batches(seed, steps, start), start=start):
            yield Batch(inputs * float("nan") if step == where else inputs, targets)

    return replace(narrow("poisoned"), batches=batches)


def test_a_nan_in_the_data_is_not_blamed_on_a_format() -> None:
    error = stopped(poisoned(3), steps=5)
    assert str(error) == (
        "step 3: the loss is NaN. Likely cause: what layer '0' is given is NaN already, from an operation between the "
        "layers or the data, in fp32."
    )


def test_too_large_a_step_stops_the_run_with_the_weight() -> None:
    held = Policy("held", "FP16 weights, all else FP32", weights="fp16")
    error = stopped(narrow(), held, steps=9, optimizer=Made("optimizers", "SGD", (("lr", 1e8),)))
    assert (error.step, error.tensor) == (0, "weight '0.weight'")
    assert str(error) == (
        "step 0: weight '0.weight' is infinite. Likely cause: gradient and states are finite, so the update overflows "
        "fp16, whose largest number is 65504 (weights were at most 0.249756); a smaller learning rate."
    )


def test_an_infinite_gradient_that_nobody_skips_stops_the_run() -> None:
    unchecked = Policy("unchecked", "", cast="fp16", weights="fp16", update="master",
                       scaler=policies.scaler("StaticScaler", scale=2.0**24, skip=False))  # fmt: skip
    error = stopped(narrow(), unchecked, steps=2, gpu=None)
    assert error.tensor.startswith("weight ")
    assert "its gradient was" in error.cause
    assert "the backward pass in fp16 at loss scale 1.67772e+07 overflowed; a smaller scale" in error.cause
    skipping = replace(unchecked, scaler=policies.scaler("StaticScaler", scale=2.0**24))
    run = fit(narrow(), skipping, steps=2, gpu=None)
    assert run.skipped.all()


def test_adams_epsilon_that_is_zero_in_fp16_is_found() -> None:
    """1e-8 is below half of FP16's smallest number: where the second moment is 0 as well, Adam divides by 0."""
    error = stopped("digits_mlp", "pure_fp16", steps=3, optimizer=ADAM, gpu=None)
    assert error.step == 0
    assert "Adam divides by zero: " in error.cause
    assert "and eps=1e-08 is 0 in fp16 too, whose smallest number is 5.96046e-08; a larger eps, or FP32 states." in (
        error.cause
    )


def test_a_dynamic_scale_finds_its_way_down_and_says_so() -> None:
    start = policies.scaler("DynamicScaler", init_scale=2.0**40)
    run = fit(narrow(), replace(policies.get("fp16_master"), scaler=start), steps=30, gpu=None)
    assert run.scales[0] == 2.0**40
    assert run.skipped[0]
    assert not run.skipped[-1]
    assert 2 < run.losses[0] < 3  # without the scale
    halved = np.where(run.skipped[:-1], 0.5, 1.0)
    assert (run.scales[1:] == run.scales[:-1] * halved).all()


# --- requests ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("asked", "text"),
    [({"task": "digit"}, "unknown task 'digit'. Allowed: digits, digits_mlp, characters. Did you mean 'digits'?"),
     ({"policy": "fp61"}, "unknown policy 'fp61'. Allowed: fp32, tf32, fp16, "),
     ({"steps": 0}, "steps=0 is not possible; allowed: 1 to 1073741824."),
     ({"every": 0}, "every=0 is not possible; allowed: 1 to 1073741824."),
     ({"seed": 2**64}, "seed=18446744073709551616 is not possible; allowed: 0 to 18446744073709551615."),
     ({"seed": -1}, "seed=-1 is not possible; allowed: 0 to 18446744073709551615.")],
)  # fmt: skip
def test_impossible_requests_are_refused(asked, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LabError) as caught:
        fit(**({"task": "digits_mlp", "steps": 1} | asked))
    call, _, rule = str(caught.value).partition("): ")
    assert call.startswith("fplab.training.fit(task=")
    assert rule.startswith(text)
