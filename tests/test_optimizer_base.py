"""What optimizers in formats and those of 8 bits share: groups, refusals that change nothing, files and copies."""

import copy
import dataclasses
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import refusals
import torch
from fresh import python
from refusals import refuses
from torch import Tensor, nn

import fplab
from fplab.errors import LabError
from fplab.training import SGD, Adagrad8bit, Adam, Adam8bit, AdamW, AdamW8bit, Lion8bit, SGD8bit

N = 5000  # more than the least size of an 8-bit state
MINE = dataclasses.replace(fplab.formats.get("bf16"), name="bf16 of mine")  # no name of the table
KINDS: dict[str, Callable[..., Any]] = {
    "sgd": lambda p: SGD(p, 0.1, 0.9, weights="fp16", states="bf16", update="kahan"),
    "adam": lambda p: Adam(p, weight_decay=0.1, weights="bf16", states="bf16", update="stochastic", seed=5),
    "adamw": lambda p: AdamW(p, weights=MINE, update="master"),
    "adam8": lambda p: Adam8bit(p, lr=1e-2, rounding="stochastic", seed=3),
    "adamw8": lambda p: AdamW8bit(p, code="linear"),
    "momentum8": lambda p: SGD8bit(p, 0.1, 0.9),
    "lion8": Lion8bit,
    "adagrad8": Adagrad8bit,
}
SLOPES = torch.randn(6, N, generator=torch.Generator().manual_seed(0))


def parameter(n: int = N, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    p = nn.Parameter(torch.linspace(-1, 1, n).to(dtype))
    p.grad = torch.linspace(1, -1, n).to(dtype)
    return p


def stepped(optimizer: Any, slopes: Tensor = SLOPES[:1]) -> Any:
    for slope in slopes:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = slope.to(p.dtype)
        optimizer.step()
    return optimizer


def everything(optimizer: Any) -> list[Tensor]:
    """The parameters and all their states."""
    ((p, state),) = optimizer.state.items()
    return [p.detach(), *(torch.as_tensor(state[name]) for name in sorted(state))]


def same(one: Any, other: Any) -> bool:
    pairs = zip(everything(one), everything(other), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def through_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# --- keywords of torch's optimizers --------------------------------------------------------------------------------
CLASSES = [SGD, Adam, AdamW, Adam8bit, AdamW8bit, Lion8bit, Adagrad8bit, lambda p, **o: SGD8bit(p, 0.1, 0.9, 0.1, **o)]


@pytest.mark.parametrize("make", CLASSES)
def test_maximizing_is_minimizing_the_opposite_and_how_torch_walks_changes_nothing(make: Any) -> None:
    nothing = {"fused": True, "foreach": False, "amsgrad": False, "capturable": False, "dampening": 0}
    up, down, plain = parameter(), parameter(), parameter()
    one, other, third = make([up], maximize=True), make([down], **nothing), make([plain])
    for _ in range(3):
        down.grad = -up.grad
        for optimizer in (one, other, third):
            optimizer.step()
    assert torch.equal(up, down)
    assert not torch.equal(up, plain)
    refuses(lambda: make([up], maximize="yes"), r"maximize='yes' is not possible; allowed: True or False\.")
    with pytest.raises(
        LabError, match=r"unknown option 'fusd'\. Allowed: lr, .*, foreach, fused\. Did you mean 'fused'\?"
    ):
        make([up], fusd=True)


KEYWORDS = {
    "amsgrad": "keeps a third state, the largest second moment, which optimizers here do not have; leave it out, or "
    "take torch.optim.Adam.",
    "capturable": "is for CUDA graphs, and optimizers here step on the CPU; leave it out.",
    "differentiable": "has no form here; leave it out, or take an optimizer of torch.optim.",
    "dampening": "has no form here; leave it out, or take an optimizer of torch.optim.",
    "decoupled_weight_decay": "makes an AdamW of an Adam; take AdamW8bit, or AdamW, instead.",
}


@pytest.mark.parametrize("name", KEYWORDS)
@pytest.mark.parametrize("make", CLASSES)
def test_what_has_no_form_here_is_refused_with_what_to_do(make: Any, name: str) -> None:
    for params, options in (([parameter()], {name: True}), ([{"params": [parameter()], name: True}], {})):
        with pytest.raises(LabError) as refusal:
            make(params, **options)
        assert str(refusal.value).endswith(f": {name}=True {KEYWORDS[name]}")


# --- saving, loading, copying -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "dtype"), [*((k, torch.float32) for k in KINDS), ("adam8", torch.bfloat16)])
def test_a_run_that_is_resumed_from_a_file_goes_on_to_the_same_bits(kind: str, dtype: torch.dtype) -> None:
    whole = stepped(KINDS[kind]([parameter(dtype=dtype)]), SLOPES[:3])
    kept = through_a_file({"p": whole.param_groups[0]["params"][0].detach(), "o": whole.state_dict()})
    resumed = KINDS[kind]([nn.Parameter(kept["p"].clone())])
    resumed.load_state_dict(kept["o"])
    held = copy.deepcopy(kept["o"])
    assert same(stepped(resumed, SLOPES[3:]), stepped(whole, SLOPES[3:]))
    for name, value in held["state"][0].items():  # what was loaded is a copy
        assert torch.equal(torch.as_tensor(kept["o"]["state"][0][name]), torch.as_tensor(value)), name


@pytest.mark.parametrize("through", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_parameters_and_optimizer_goes_on_to_the_same_bits(kind: str, through: Any) -> None:
    p = parameter()
    optimizer = stepped(KINDS[kind]([p]), SLOPES[:2])
    q, twin = through((p, optimizer))
    assert twin.param_groups[0]["params"][0] is q
    assert same(stepped(twin, SLOPES[2:4]), stepped(optimizer, SLOPES[2:4]))
    assert not torch.equal(q, parameter())


@pytest.mark.parametrize("mine", KINDS)
@pytest.mark.parametrize("theirs", [*KINDS, "torch", "nothing", "None"])
def test_a_state_dict_of_another_optimizer_is_refused_and_changes_nothing(mine: str, theirs: str) -> None:
    others = {"torch": torch.optim.Adam([parameter()]).state_dict(), "nothing": {}, "None": None}
    saved = others[theirs] if theirs in others else stepped(KINDS[theirs]([parameter()])).state_dict()
    optimizer = KINDS[mine]([parameter()])
    before = copy.deepcopy(optimizer.state_dict())
    if mine == theirs:
        optimizer.load_state_dict(saved)
        stepped(optimizer)
        return
    with pytest.raises(LabError, match=r"^(this is no state_dict of an optimizer such as|group 0 of the state_dict) "):
        optimizer.load_state_dict(saved)
    assert str(optimizer.state_dict()) == str(before)


def loading(make: Callable[..., Any], saved: Any, n: int = N) -> None:
    make([parameter(n)]).load_state_dict(saved)


def saved_by(make: Callable[..., Any]) -> Any:
    return stepped(make([parameter()])).state_dict()


test_a_state_dict_that_does_not_fit_is_refused_with_the_reason = refusals.exactly(
    (lambda: loading(Adam8bit, {}),
     "this is no state_dict of an optimizer such as Adam8bit; pass what optimizer.state_dict() returned."),
    (lambda: loading(lambda p: SGD(p, momentum=0.5), saved_by(lambda p: SGD(p, momentum=0.5, weights="fp16"))),
     "group 0 of the state_dict was saved with weights='fp16', but this optimizer has weights='fp32'; build it with "
     "weights='fp16' to go on."),
    (lambda: loading(Adam8bit, saved_by(lambda p: Adam8bit(p, block=256))),
     "group 0 of the state_dict was saved with block=256, but this optimizer has block=2048; build it with block=256 "
     "to go on."),
    (lambda: loading(lambda p: Adam8bit(p, code="linear"), saved_by(Adam8bit)),
     "group 0 of the state_dict was made with other codebooks; make the optimizer with the same code."),
    (lambda: loading(Lion8bit, saved_by(Adam8bit)), "group 0 of the state_dict is of adam, this optimizer of lion."),
    *((lambda n=n: loading(Adam8bit, saved_by(Adam8bit), n),
       f"'state1' of parameter 0 of the state_dict has shape (5000,), the parameter ({n},); it is of another model.")
      for n in (4999, 6000)),
    (lambda: loading(KINDS["sgd"], saved_by(KINDS["sgd"]), 3),
     "'velocity' of parameter 0 of the state_dict has shape (5000,), the parameter (3,); it is of another model."),
)  # fmt: skip


# --- options and groups -------------------------------------------------------------------------------------------
NUMBERS = {
    "lr": [(-1.0, "lr=-1.0 is not possible; allowed: finite and not negative."), ("fast", "lr='fast' is not a number."),
           ("1e-3", "lr='1e-3' is not a number."), (float("inf"), "lr=inf is not possible; allowed: finite and not "),
           (torch.zeros(2), "lr=tensor([0., 0.]) is not a number.")],
    "eps": [(None, "eps=None is not a number."), (-0.1, "eps=-0.1 is not possible; allowed: finite and not negative.")],
    "weight_decay": [(float("nan"), "weight_decay=nan is not possible; allowed: finite and not negative.")],
    "betas": [((0.9,), "betas=(0.9,) are not two numbers, such as (0.9, 0.999)."),
              ((0.9, 1.0), "betas=(0.9, 1.0) are not possible; allowed: two numbers from 0 to below 1.")],
    "momentum": [(1.0, "momentum=1.0 is not possible; allowed: from 0 to below 1.")],
    "seed": [(0.5, "seed=0.5 is not an integer"), (-1, "seed=-1 is not possible; allowed: 0 to 18446744073709551615.")],
}  # fmt: skip
EIGHT = {
    "block": [(0, "block=0 is not possible; allowed: 1 to 1099511627776 (None: the whole tensor)."),
              ("x", "block='x' is not an integer")],
    "sign": [("keep", "unknown sign 'keep'. Allowed: kept, nearest. Did you mean 'kept'?")],
    "decay": [("befor", "unknown decay 'befor'. Allowed: gradient, before, after. Did you mean 'before'?")],
    "rounding": [("up", "unknown rounding 'up'. Allowed: nearest, stochastic.")],
    "bad_gradients": [("raise", "unknown bad_gradients 'raise'. Allowed: skip, error.")],
    "state_bits": [(16, "state_bits=16 is not possible; allowed: 8, 32.")],
    "min_8bit_size": [(-1, "min_8bit_size=-1 is not possible")],
}  # fmt: skip
TAKEN = {"momentum": (SGD,), "betas": (Adam, Adam8bit), "eps": (Adam, Adam8bit), **dict.fromkeys(EIGHT, (Adam8bit,))}
ASKED = [(make, name, value, text) for name, cases in (NUMBERS | EIGHT).items()
         for make in TAKEN.get(name, (Adam, SGD, Adam8bit)) for value, text in cases]  # fmt: skip


@pytest.mark.parametrize(("make", "name", "value", "text"), ASKED)
def test_options_are_checked_for_the_optimizer_and_for_a_group(make: Any, name: str, value: Any, text: str) -> None:
    optimizer = make([parameter()])
    for ask in (
        lambda: make([parameter()], **{name: value}),
        lambda: make([{"params": [parameter()], name: value}]),
        lambda: optimizer.add_param_group({"params": [parameter()], name: value}),
    ):
        with pytest.raises(LabError) as caught:
            ask()
        assert text in str(caught.value)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("make", [Adam, Adam8bit])
@pytest.mark.parametrize("number", [np.float32, np.float64, torch.tensor], ids=lambda kind: kind.__name__)
def test_numbers_of_numpy_and_torch_are_numbers(make: Any, number: Any) -> None:
    """They count as float64: at their own precision bias corrections would be rounded on the way."""
    given = [number(x) for x in (1e-3, 0.9, 0.999, 1e-8)]
    runs = []
    for lr, beta1, beta2, eps in (given, [float(x) for x in given]):
        runs.append(stepped(make([parameter()], lr=lr, betas=(beta1, beta2), eps=eps), SLOPES))
    assert same(*runs)


@pytest.mark.parametrize("make", [Adam, Adam8bit])
def test_a_tensor_stays_the_learning_rate_that_schedulers_write_into(make: Any) -> None:
    p, lr = parameter(), torch.tensor(0.5)
    optimizer = make([p], lr=lr)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    lr.fill_(0)
    stepped(optimizer)
    assert torch.equal(p, parameter())


@pytest.mark.parametrize(
    ("make", "text"),
    [(AdamW, "pass float32 on the CPU, in which values of every format travel, and say which: weights="),
     (Adam8bit, "8-bit optimizers take float32, float16 and bfloat16 on the CPU")],
)  # fmt: skip
def test_a_parameter_of_another_dtype_is_refused_also_where_it_became_it(make: Any, text: str) -> None:
    """``model.double()`` keeps the parameter and changes its data: an update in float32 would round all of it."""
    layer = nn.Linear(3, 3)
    optimizer = make(layer.parameters())
    with pytest.raises(LabError, match=f"a parameter is float64 on 'cpu'; {text}"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3).double())]})
    assert len(optimizer.param_groups) == 1
    refuses(lambda: optimizer.add_param_group([parameter()]), "a parameter group is a list; it is a dict")
    layer.double()(torch.zeros(3).double()).sum().backward()
    refuses(lambda: optimizer.step(), f"a parameter is float64 on 'cpu'; {text}")


@pytest.mark.parametrize("kind", ["adamw", "adam8", "not finite"])
def test_a_step_that_is_refused_moves_nothing(kind: str) -> None:
    p, q = parameter(), parameter()
    q.grad = torch.full((N,), float("nan")) if kind == "not finite" else torch.zeros(N).to_sparse()
    make = KINDS.get(kind, lambda both: Adam8bit(both, bad_gradients="error"))
    optimizer = make([p, q])
    before = p.detach().clone(), str(optimizer.state_dict())
    text = (
        "element 0 of the gradient of parameter 1 is nan" if kind == "not finite" else "a gradient is sparse; pass de"
    )
    refuses(lambda: optimizer.step(), text)
    assert torch.equal(p, before[0])
    assert str(optimizer.state_dict()) == before[1]


FRESH = """
import sys
import torch
from fplab.training import AdamW

def trained(steps, optimizer, p):
    for _ in range(steps):
        p.grad = p.detach() * 0.5
        optimizer.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    return p.detach(), p.grad, len(optimizer.param_groups)

def begun():
    p = torch.nn.Parameter(torch.arange(1.0, 4.0))
    return AdamW([p], 0.1), p

first = trained(3, *begun())
print("torch._dynamo" in sys.modules)

@torch.compile(backend="eager")
def compiled(x, optimizer):
    optimizer.zero_grad()
    return x + 1

optimizer, p = begun()
p.grad = p.detach() * 0.5
print(compiled(torch.ones(2), optimizer).tolist(), p.grad)
print("torch._dynamo" in sys.modules)
second = trained(3, *begun())
print(torch.equal(first[0], second[0]), first[1:] == second[1:] == (None, 2))
"""


def test_the_compiler_of_torch_is_imported_by_those_alone_who_compile() -> None:
    """A fresh process; with and without it an optimizer does the same, also inside a compiled function."""
    assert python(FRESH, warnings="ignore").splitlines() == ["False", "[2.0, 2.0] None", "True", "True True"]
