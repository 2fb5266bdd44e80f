"""8-bit optimizers under odd use: options of groups, states that do not fit, foreign state_dicts, replaced weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fplab import codebooks
from fplab.errors import LabError
from fplab.training import Adagrad8bit, Adam8bit, AdamW8bit, Lion8bit, SGD8bit, StableEmbedding


def parameter(n: int = 5000) -> nn.Parameter:
    p = nn.Parameter(torch.linspace(-1, 1, n))
    p.grad = torch.linspace(1, -1, n)
    return p


def stepped(optimizer: Any) -> Any:
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"block": 0}, r"block=0 is not possible; allowed: 1 to 1099511627776 \(None: the whole tensor\)\."),
        ({"block": "x"}, r"block='x' is not an integer"),
        ({"sign": "keep"}, r"unknown sign 'keep'\. Allowed: kept, nearest\. Did you mean 'kept'"),
        ({"decay": "befor"}, r"unknown decay 'befor'.* Did you mean 'before'"),
        ({"rounding": "up"}, r"unknown rounding 'up'\. Allowed: nearest, stochastic\."),
        ({"bad_gradients": "raise"}, r"unknown bad_gradients 'raise'\. Allowed: skip, error\."),
        ({"state_bits": 16}, r"state_bits=16 is not possible; allowed: 8, 32\."),
        ({"lr": -1.0}, r"lr=-1\.0 is not possible; allowed: finite and not negative\."),
        ({"lr": "fast"}, r"lr='fast' is not a number\."),
        ({"lr": "1e-3"}, r"lr='1e-3' is not a number\."),
        ({"lr": float("inf")}, r"lr=inf is not possible; allowed: finite and not negative\."),
        ({"lr": torch.zeros(2)}, r"lr=tensor\(\[0\., 0\.\]\) is not a number\."),
        ({"eps": None}, r"eps=None is not a number\."),
        ({"betas": (0.9,)}, r"betas=\(0\.9,\) are not two numbers, such as \(0\.9, 0\.999\)\."),
        ({"betas": (0.9, 1.0)}, r"betas=\(0\.9, 1\.0\) are not possible; allowed: two numbers from 0 to below 1\."),
        ({"min_8bit_size": -1}, r"min_8bit_size=-1 is not possible"),
        ({"seed": 0.5}, r"seed=0\.5 is not an integer"),
    ],
)  # fmt: skip
def test_options_are_checked_for_the_optimizer_and_for_a_group(options: dict[str, Any], text: str) -> None:
    with pytest.raises(LabError, match=text):
        Adam8bit([parameter()], **options)
    with pytest.raises(LabError, match=text):
        Adam8bit([{"params": [parameter()], **options}])
    optimizer = Adam8bit([parameter()])
    with pytest.raises(LabError, match=text):
        optimizer.add_param_group({"params": [parameter()], **options})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("dynamc", r"unknown code 'dynamc'\. Allowed: dynamic, linear\. Did you mean"),
        (codebooks.nf4(), r"code is two Codebooks"),
        ((codebooks.dynamic(False),) * 2, r"dynamic unsigned 8-bit has no negative values"),
    ],
)
def test_a_code_is_two_codebooks_the_first_with_a_sign(code: Any, text: str) -> None:
    with pytest.raises(LabError, match=text):
        Adam8bit([parameter()], code=code)


def test_a_momentum_is_below_1() -> None:
    with pytest.raises(LabError, match=r"momentum=1\.5 is not possible; allowed: from 0 to below 1\."):
        SGD8bit([parameter()], 0.1, 1.5)


def test_a_group_has_blocks_of_its_own_and_no_codebook_of_its_own() -> None:
    p, q, r = parameter(), parameter(), parameter()
    optimizer = stepped(Adam8bit([{"params": [p], "block": 64}, {"params": [q], "block": None}, {"params": [r]}]))
    assert [optimizer.state[x]["absmax1"].numel() for x in (p, q, r)] == [79, 1, 3]
    with pytest.raises(LabError, match="code is the whole optimizer's, not a group's; make another optimizer"):
        Adam8bit([{"params": [parameter()], "code": "linear"}])
    linear = Adam8bit([parameter()], code="linear")
    with pytest.raises(LabError, match="code is the whole optimizer's"):
        Adam8bit(linear.param_groups)
    assert Adam8bit(optimizer.param_groups).param_groups[1]["block"] is None


@pytest.mark.parametrize("number", [np.float32, np.float64, torch.tensor], ids=lambda kind: kind.__name__)
def test_numbers_of_numpy_and_torch_are_numbers(number: Any) -> None:
    """They count as float64: at their own precision bias corrections would be rounded on the way."""
    given = [number(x) for x in (1e-3, 0.9, 0.999, 1e-8)]
    weights = []
    for lr, beta1, beta2, eps in (given, [float(x) for x in given]):
        p = parameter()
        optimizer = Adam8bit([p], lr=lr, betas=(beta1, beta2), eps=eps)
        for _ in range(5):
            optimizer.step()
        weights.append(p.detach().clone())
    assert torch.equal(*weights)


def test_a_tensor_stays_the_learning_rate_that_schedulers_write_into() -> None:
    p, lr = parameter(), torch.tensor(0.5)
    optimizer = Adam8bit([p], lr=lr)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    lr.fill_(0)
    before = p.detach().clone()
    optimizer.step()
    assert torch.equal(p, before)


def test_a_group_is_a_dict() -> None:
    with pytest.raises(LabError, match="a parameter group is a list; it is a dict"):
        Adam8bit([parameter()]).add_param_group([parameter()])  # type: ignore[arg-type]


def test_a_parameter_that_became_another_dtype_is_refused() -> None:
    """``model.double()`` keeps the parameter and changes its data: an update in float32 would round all of it."""
    layer = nn.Linear(3, 3)
    optimizer = Adam8bit(layer.parameters())
    layer.double()(torch.zeros(3).double()).sum().backward()
    with pytest.raises(LabError, match="a parameter is float64 on 'cpu'; 8-bit optimizers take float32"):
        optimizer.step()


@pytest.mark.parametrize("bad", ["not finite", "sparse"])
def test_a_step_that_is_refused_moves_nothing(bad: str) -> None:
    p, q = parameter(), parameter()
    q.grad = torch.zeros(5000).to_sparse() if bad == "sparse" else torch.full((5000,), float("nan"))
    optimizer, before = Adam8bit([p, q], bad_gradients="error"), p.detach().clone()
    with pytest.raises(LabError, match="sparse" if bad == "sparse" else "element 0 of the gradient of parameter 1 is"):
        optimizer.step()
    assert torch.equal(p, before)
    assert not optimizer.state


def test_a_refused_parameter_is_not_kept() -> None:
    optimizer = Adam8bit([parameter()])
    with pytest.raises(LabError, match="a parameter is float64 on 'cpu'"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3).double())]})
    assert len(optimizer.param_groups) == 1


# --- states that do not fit: the kernels trust their sizes --------------------------------------------------------


def test_a_state_of_another_dtype_is_an_error() -> None:
    p = parameter()
    optimizer = stepped(Adam8bit([p]))
    optimizer.state[p]["state2"] = optimizer.state[p]["state2"].half()
    with pytest.raises(
        LabError, match=r"state 2 of parameter 0 is torch\.float16; it is torch\.uint8 or torch\.float32"
    ):
        optimizer.step()


def test_a_loaded_state_lies_in_its_own_order() -> None:
    """One that was saved transposed must not be updated through a copy that is thrown away."""
    runs = []
    for turned in (False, True):
        p = nn.Parameter(torch.linspace(-1, 1, 6400).reshape(80, 80))
        p.grad = torch.linspace(1, -1, 6400).reshape(80, 80)
        saved = stepped(Adam8bit([p])).state_dict()
        for state in saved["state"].values():
            for name in ("state1", "state2") if turned else ():
                state[name] = state[name].t().contiguous().t()
        optimizer = Adam8bit([p])
        optimizer.load_state_dict(saved)
        for _ in range(3):
            p.grad = p.grad.t().contiguous()  # the shape of the states changes from step to step
            optimizer.step()
        runs.append(p.detach().clone())
    assert torch.equal(*runs)


@pytest.mark.parametrize("n", [4999, 6000, 30])
def test_a_resized_parameter_is_an_error(n: int) -> None:
    p = parameter()
    optimizer = stepped(Adam8bit([p]))
    p.data, p.grad = torch.zeros(n), torch.ones(n)
    want = rf"state 1 of parameter 0 has shape \(5000,\), the parameter \({n},\); a parameter that was resized needs"
    with pytest.raises(LabError, match=want):
        optimizer.step()
    assert not p.any()


def test_the_block_size_cannot_change_between_steps() -> None:
    p = parameter()
    optimizer = stepped(Adam8bit([p]))
    optimizer.param_groups[0]["block"] = 64
    with pytest.raises(
        LabError, match=r"state 1 of parameter 0 has 3 scales, and blocks of 64 need 79; the block size"
    ):
        optimizer.step()


@pytest.mark.parametrize("n", [4999, 6000])
def test_a_state_dict_of_other_shapes_is_refused_and_changes_nothing(n: int) -> None:
    saved = stepped(Adam8bit([parameter()], lr=0.5)).state_dict()
    optimizer = Adam8bit([parameter(n)])
    want = rf"'state1' of parameter 0 of the state_dict has shape \(5000,\), the parameter \({n},\); it is of another"
    with pytest.raises(LabError, match=want):
        optimizer.load_state_dict(saved)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 1e-3


MAKERS = {
    "adam": Adam8bit,
    "momentum": lambda p: SGD8bit(p, 0.1, 0.9),
    "lion": Lion8bit,
    "adagrad": Adagrad8bit,
}


@pytest.mark.parametrize("mine", MAKERS)
@pytest.mark.parametrize("theirs", MAKERS)
def test_a_state_dict_of_another_optimizer_is_refused(mine: str, theirs: str) -> None:
    saved = stepped(MAKERS[theirs]([parameter()])).state_dict()
    optimizer = MAKERS[mine]([parameter()])
    if mine == theirs:
        optimizer.load_state_dict(saved)
        optimizer.step()
        return
    with pytest.raises(LabError, match=rf"group 0 of the state_dict is of {theirs}, this optimizer of {mine}\."):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("saved", [{}, None, torch.optim.Adam([parameter()]).state_dict()], ids=["{}", "None", "torch"])
def test_what_is_no_state_dict_of_an_8_bit_optimizer_is_refused(saved: Any) -> None:
    with pytest.raises(
        LabError, match=r"this is no state_dict of an optimizer such as Adam8bit; pass what optimizer\.state_dict"
    ):
        Adam8bit([parameter()]).load_state_dict(saved)


def test_a_state_dict_of_another_block_size_or_codebook_is_refused() -> None:
    saved = Adam8bit([parameter()], block=256).state_dict()
    with pytest.raises(LabError, match=r"block=256, but this optimizer has block=2048; build it with block=256"):
        Adam8bit([parameter()]).load_state_dict(saved)
    with pytest.raises(LabError, match=r"group 0 of the state_dict was made with other codebooks; make the optimizer"):
        Adam8bit([parameter()], code="linear", block=256).load_state_dict(saved)


def test_adam_and_adamw_read_each_others_states() -> None:
    optimizer = AdamW8bit([parameter()])
    optimizer.load_state_dict(stepped(Adam8bit([parameter()])).state_dict())
    optimizer.step()


# --- the stable embedding's mark ----------------------------------------------------------------------------------


def test_a_replaced_or_tied_weight_keeps_32_bit_states() -> None:
    head = nn.Linear(64, 128, bias=False)
    table = StableEmbedding(128, 64)
    table.weight = head.weight
    loaded = StableEmbedding(128, 64)
    loaded.load_state_dict(StableEmbedding(128, 64).state_dict(), assign=True)
    materialised = StableEmbedding(128, 64, device="meta")
    assert materialised.norm.weight.is_meta
    materialised = materialised.to_empty(device="cpu")
    for one in (table, loaded, materialised):
        nn.init.ones_(one.weight)
        optimizer = Adam8bit(one.parameters())
        one(torch.arange(128)).sum().backward()
        optimizer.step()
        assert optimizer.state[one.weight]["state1"].dtype == torch.float32
