"""A watch that is misused says what is wrong, and what is allowed."""

import pytest
import torch
from fresh import python
from refusals import refuses
from torch import nn
from watched import loop, mlp, watched

from fplab.errors import LabError
from fplab.nn import watch


def test_errors_quote_the_call():
    model = mlp()
    refuses(lambda: watch(model, 3), r"^fplab\.nn\.watch\(<Sequential>, 3\): optimizer is a int without step")
    seen = watch(model, torch.optim.SGD(model.parameters(), 0.1))
    assert str(seen).startswith("<fplab.nn.diagnose.watch.watch object")
    refuses(lambda: seen.report(), r"^fplab\.nn\.watch\.report\(\): no step was taken inside the block")
    with pytest.raises(LabError, match=r"^fplab\.nn\.watch\.fates\('fp16', 'weight'\): unknown kind 'weight'"):
        seen.fates("fp16", "weight")


def test_a_report_without_a_step():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as seen:
        model(torch.randn(5, 6)).sum().backward()
    refuses(lambda: seen.report(), r"no step was taken inside the block: the optimizer's step\(\) was never called")
    refuses(lambda: watch.compare(seen, seen), "saw no step, so there is nothing to compare")


def test_an_optimizer_of_another_model():
    with pytest.raises(LabError, match=r"SGD owns none of the 4 parameters of Sequential; make it from this model's"):
        watch(mlp(), torch.optim.SGD(mlp().parameters(), 0.1))


def test_a_scheduler_is_no_optimizer_and_one_format_is_a_list_of_one():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(LabError, match="optimizer is a StepLR, a scheduler; pass its optimizer"):
        watch(model, torch.optim.lr_scheduler.StepLR(optimizer, 1))
    assert watch(model, optimizer, formats="fp16").formats == watch(model, optimizer, formats=["fp16"]).formats
    assert watch(model, optimizer, formats=torch.float16).formats == watch(model, optimizer, formats=["fp16"]).formats


def test_a_watch_inside_a_watch_and_one_used_twice():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as seen:
        with pytest.raises(LabError, match=r"a watch \(on Sequential\) is open already: one watch sees every step"):
            watch(model, optimizer).__enter__()
        loop(model, optimizer, 1)
    refuses(lambda: seen.__enter__(), "this watch has seen a run; make a new one")


@pytest.mark.parametrize(
    ("given", "text"),
    [({"model": 3}, "model is a int; it must be a torch.nn.Module"),
     ({"model": nn.ReLU()}, "ReLU has no parameters; there is no training to watch"),
     ({"optimizer": [1]}, r"optimizer is a list without step\(\); pass what updates the parameters"),
     ({"scaler": object()}, r"scaler is a object without scale\(\); pass a loss scaler, or None"),
     ({"every": 0}, "every=0 is not possible; allowed: 1 to"),
     ({"keep": -1}, "keep=-1 is not possible; allowed: 0 to"),
     ({"formats": ()}, r"formats=\(\) names no candidate"),
     ({"formats": ("fp15",)}, r"unknown format 'fp15'\. Allowed: .* Did you mean 'fp16'\?")],
)  # fmt: skip
def test_arguments_that_do_not_fit(given, text):
    model = mlp()
    arguments = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)} | given
    refuses(lambda: watch(**arguments), text)


COMPILED = """
import sys, torch
from torch import nn
from fplab.nn import watch
class SGD:
    def __init__(self, parameters):
        self.parameters = list(parameters)
    def step(self):
        with torch.no_grad():
            for p in self.parameters:
                p.sub_(p.grad, alpha=0.1)
                p.grad = None
def counts(way):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 1))
    program = torch.compile(model, backend="aot_eager") if way == "before" else model
    if way == "in place":
        model.compile(backend="aot_eager")
    with watch(program, SGD(model.parameters()), every=1) as seen:
        program = torch.compile(model, backend="aot_eager") if way == "inside" else program
        for _ in range(3):
            program(torch.randn(4, 6)).square().sum().backward()
            seen._optimizer.step()
    report = seen.report()
    return [(row.layer, row.kind, row.fates) for row in report.rows], [n for n in report.notes if "compiled" in n]
plain = counts("")
loaded = ["torch._dynamo" in sys.modules]
for way in ("inside", "before", "in place"):
    rows, notes = counts(way)
    loaded.append("torch._dynamo" in sys.modules)
    print(rows == plain[0], len(rows), notes)
print(loaded, plain[1])
"""


def test_a_compiled_model_is_watched_as_what_it_was_compiled_from():
    """Also one that is compiled in the block, where the compiler may not have been imported before."""
    note = "['the model is compiled: here it ran what it was compiled from, each result rounded']"
    said = python(COMPILED, warnings="ignore").splitlines()
    assert said == [f"True 12 {notes}" for notes in ("[]", note, note)] + ["[False, True, True, True] []"]


def test_questions_that_do_not_fit():
    model = mlp()
    seen = watched(model, every=8)
    with pytest.raises(LabError, match=r"unknown kind 'weight'\. Allowed: .*weights.* Did you mean 'weights'\?"):
        seen.fates("fp16", "weight")
    refuses(lambda: seen.fates("fp16", "weights", "act"), r"unknown layer 'act'\. Allowed: one, two\.")
    refuses(lambda: seen.lost("act"), r"unknown layer 'act'\. Allowed: one, two\.")
    refuses(lambda: seen.fates("fp16", "weights", log2_scale=65), "log2_scale=65 is not possible; allowed: -64 to 64")
    refuses(lambda: seen.report(tolerance=1), "tolerance=1 is no share; allowed: 0 <= tolerance < 1")
