"""Shadow execution: companions are a plain FP64 run's bits, the run keeps its own, effects add up, faults are named."""

from __future__ import annotations

import copy
import math
import textwrap

import numpy as np
import pytest
import torch
from fresh import python
from refusals import refuses
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fplab.errors import LabError
from fplab.kernels import discrepancy
from fplab.nn import emulate, formats, quantize, shadow
from fplab.training.transformer import transformer


class Convolutional(nn.Module):
    """Statistics in place, views that are written to, decisions by a pool."""

    def __init__(self):
        super().__init__()
        self.conv, self.batch, self.group = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
        self.linear = nn.Linear(32, 3)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.batch(self.conv(x)), inplace=True), 2)
        x = self.group(x)
        x += 0.1
        x[:, 0] *= 2
        return self.linear(functional.avg_pool2d(functional.silu(x), 2).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.linear = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(self.cells(x)[0].mean(1))


class Recomputed(nn.Module):
    """Both kinds of checkpoints."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        x = checkpoint(self.inner, x, use_reentrant=False)
        return self.linear(x + checkpoint(self.inner, x, use_reentrant=True))


class Chosen(nn.Module):
    """Complex numbers, and values that are picked by size."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(9, 3)

    def forward(self, x):
        picked = [x.max(1).values, x.topk(2).values[:, 1], x.sort().values[:, 3], x.logsumexp(1)]
        return self.linear(torch.cat([torch.fft.rfft(x * 1.1).abs(), torch.stack(picked, 1)], 1))


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.mixing, self.linear = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        x = self.encoder(x)
        x = x + self.mixing(x, x, x, attn_mask=torch.ones(4, 4, dtype=torch.bool).triu(1))[0]
        return self.linear(x[:, 0].masked_fill(x[:, 0] > 1, 0.5))


MODELS = {
    Convolutional: (4, 3, 8, 8), Recurrent: (4, 5, 8), Recomputed: (4, 8), Chosen: (4, 8), Attentive: (4, 4, 8)
}  # fmt: skip


def train(model, x, kind, steps=2):
    """The last outputs and the loss of a few clipped steps."""
    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.01, **more)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x)
        loss = functional.cross_entropy(out, torch.arange(len(x)) % 3)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return out, loss


def same(one, other):
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("kind", MODELS)
def test_companions_are_the_bits_of_a_plain_fp64_run(kind, optimizer):
    torch.manual_seed(0)
    model, x = kind(), torch.randn(MODELS[kind])
    plain, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    train(plain, x, optimizer)
    out, loss = train(wide, x.double(), optimizer)
    with shadow() as s:
        mine, my_loss = train(model, x, optimizer)
    for one, other in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert same(one, other)  # the run keeps its bits
    assert same(s.exact(mine), out)
    assert same(s.exact(my_loss), loss)
    for one, other in zip(model.parameters(), wide.parameters(), strict=True):
        assert same(s.exact(one), other)
        assert same(s.exact(one.grad), other.grad)
    report = s.report()
    assert not report.anew
    effects = [row.effect for row in report.rows]
    assert report.rest == pytest.approx(0, abs=1e-5 * max(map(abs, effects)))  # second order: the errors are 1e-7
    assert report.whole == report.rest + report.explained == s._run.whole
    assert math.isclose(report.explained, math.fsum(effects), rel_tol=1e-9, abs_tol=1e-20)


def test_beside_an_emulation_both_keep_their_bits():
    text = torch.randint(96, (2, 16), generator=torch.Generator().manual_seed(0))

    def step(model):
        logits = model(text)
        loss = functional.cross_entropy(logits.flatten(0, 1), text.flatten())
        loss.backward()
        return logits, loss

    plain, model, wide = transformer(0), transformer(0), transformer(0).double()
    with emulate("H100", "fp16"):
        logits, _ = step(plain)
    exact, _ = step(wide)
    with emulate("H100", "fp16"), shadow() as s:
        mine, _ = step(model)
    assert same(mine, logits)
    assert same(s.exact(mine), exact)
    for one, other, third in zip(model.parameters(), plain.parameters(), wide.parameters(), strict=True):
        assert same(one.grad, other.grad)
        assert same(s.exact(one.grad), third.grad)
    report = s.report()
    assert report.layer == "head"
    assert "products in H100 wgmma.k16 fp16->fp32: mm" in str(report.diagnosis)
    assert abs(report.rest) < 1e-3 * abs(report.whole)  # of the first order: errors of FP16's operands, 3e-4
    refuses(lambda: step_inside(model, text), r"Enter the shadow last: with emulate\(\.\.\.\), shadow\(\) as s:")


def step_inside(model, text):
    with shadow(), emulate("H100", "fp16"):
        model(text)


def test_sums_of_errors_against_fractions_of_python():
    draw = np.random.Generator(np.random.Philox(1))
    n = discrepancy.BLOCK + 1000
    exact = draw.standard_normal(n)
    local = exact * (1 + 1e-4 * draw.standard_normal(n))
    real = local.astype(np.float16).astype(np.float32)
    real[:5], exact[7], local[8:10] = [np.inf, np.nan, 0, 1e-7, 65504], -np.inf, [2e5, np.inf]
    real[8] = 65504
    tiny, largest, floor = 2.0**-14, 65504.0, 0.01
    out = np.empty((2, discrepancy.COLUMNS))
    errors = np.empty(n, np.float32)
    discrepancy.discrepancies(real, local, exact, None, None, tiny, largest, floor, errors, out, 0, 2)
    with np.errstate(invalid="ignore"):
        born = real - local
    assert np.array_equal(errors, np.where(np.isfinite(born), born, 0).astype(np.float32))
    for block, rows in enumerate((slice(0, discrepancy.BLOCK), slice(discrepancy.BLOCK, n))):
        triples = [(float(r), float(x), float(e)) for r, x, e in zip(real[rows], local[rows], exact[rows], strict=True)]
        found = [t for t in triples if math.isfinite(t[2]) and math.isfinite(t[0])]
        sums = [0.0] * 4  # in the kernel's order
        for r, x, e in found:
            sums[0], sums[2] = sums[0] + e * e, sums[2] + (r - e) * (r - e)
            if math.isfinite(x):
                sums[1], sums[3] = sums[1] + (r - x) * (r - x), sums[3] + (r - x) * (r - e)
        counts = [
            sum(math.isfinite(e) and not math.isfinite(r) for r, _, e in triples),
            sum(r == 0 and x != 0 for r, x, _ in found), sum(0 < abs(r) < tiny for r, _, _ in found),
            sum(abs(r) >= largest and abs(x) > largest for r, x, _ in found),
        ]  # fmt: skip
        worst = max(abs(r - e) / abs(e) for r, _, e in found if abs(e) > floor)
        place = int(out[block, discrepancy.WHERE])
        assert out[block, :8].tolist() == [*sums, *counts]
        assert out[block, discrepancy.WORST] == worst
        assert abs(float(real[place]) - exact[place]) / abs(exact[place]) == worst


def test_each_result_is_born_and_carried():
    x, w = torch.randn(6, 5, generator=torch.Generator().manual_seed(2)).unbind(0), torch.tensor(3.0)
    with shadow() as s:
        y = x[0] / w
        z = y * x[1]
    (divided, one), (multiplied, two) = s.report().operations.items()
    assert divided[2:] == ("div", "float32")
    assert multiplied[2:] == ("mul", "float32")
    born = y.double() - x[0].double() / 3
    assert one.born == pytest.approx(float(born.norm() / (x[0].double() / 3).norm()), rel=1e-12)
    assert one.carried == 0
    assert one.share == 1
    exact = x[0].double() / 3 * x[1]
    assert same(s.exact(z), exact)
    assert two.carried == pytest.approx(float((born * x[1]).norm() / exact.norm()), rel=1e-7)
    assert two.total == pytest.approx(float((z - exact).norm() / exact.norm()), rel=1e-12)


def test_products_in_groups_have_exact_companions():
    a, b = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(5)).unbind(0)
    w, ends = torch.stack([b, -2 * b, a]), torch.tensor([2, 2, 6], dtype=torch.int32)
    with shadow() as s:
        out = torch._grouped_mm(a / 3, w.mT, offs=ends)
    exact = [(a.double() / 3)[cut] @ m.double().T for cut, m in zip((slice(0, 2), slice(2, 6)), (b, a), strict=True)]
    assert same(s.exact(out).contiguous(), torch.cat(exact))
    assert not s.report().anew


def test_cancellation_is_named_with_its_bits_and_operands():
    with shadow() as s:
        a = torch.tensor([1.0, 3.0]) / 3
        b = a * torch.tensor([1 + 2.0**-20, 2.0])
        c = b - a
    (worst, *_) = s.report().elements
    assert (worst.operation, worst.place) == ("sub", (0,))
    assert worst.exact == float(s.exact(c)[0])
    assert worst.bits == pytest.approx(21, abs=0.01)
    assert f"of {float(b[0]):.9g} (exactly {float(s.exact(b)[0]):.9g})" in " ".join(str(s.report()).split())
    assert "catastrophic cancellation, 21.0 bits lost" in " ".join(str(s.report()).split())


@pytest.mark.parametrize(("lost", "named"), [(3.2, False), (6, True)])
def test_cancellation_is_called_catastrophic_from_four_bits_on(lost, named):
    with shadow() as s:
        a = torch.tensor([3.0]) / 3.1
        a * (1 - 2 / (2**lost + 1)) - a
    bits = [one.bits for one in s.report().elements if one.operation == "sub"]
    assert bits == pytest.approx([lost] * named, abs=0.01)
    assert ("catastrophic cancellation" in str(s.report())) is named


def test_decisions_and_random_numbers_are_the_runs_own():
    torch.manual_seed(3)
    x = torch.randn(64) / 3
    with shadow() as s:
        y = functional.dropout(x / 7, 0.5)
        noise = torch.randn_like(x / 7)
        noisy = x + noise
        low, order = (x / 7).half().float().sort()
        anew = nn.LSTM(4, 4)(torch.rand(2, 1, 4) / 3)[0]
    assert same(s.exact(y), x.double() / 7 * ((y != 0) * 2.0))
    assert same(s.exact(noisy), x.double() + noise.double())
    assert same(s.exact(low), (x.double() / 7)[order])
    assert same(s.exact(anew), anew.double())
    assert s.report().anew == ("mkldnn_rnn_layer",)
    assert "having no float64 form here: mkldnn_rnn_layer" in " ".join(str(s.report()).split())


def test_roundings_of_the_lab_are_followed_and_memory_is_given_back():
    torch.manual_seed(4)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(8, 16)
    exact = copy.deepcopy(model).double()(x.double())
    with shadow() as s, formats(model, weights="e4m3", activations="bf16", gradients="e5m2"):
        out = model(x)
        out.square().mean().backward()
    assert same(s.exact(out), exact)
    kinds = {(w.operation, w.format) for w in s.report().operations}
    assert {("rounding", "e4m3"), ("rounding", "bf16"), ("rounding", "e5m2")} <= kinds
    assert [w.layer for w in s.report().operations if w[1:] == ("forward", "rounding", "bf16")][1:] == ["0", "1", "2"]
    held = s.bytes
    del out, exact
    for p in model.parameters():
        p.grad = None
    assert 0 < s.bytes < held


def test_words_of_errors_and_of_nothing():
    refuses(lambda: shadow("fp80"), r"unknown precision 'fp80'\. Allowed: fp64")
    with shadow() as s:
        x = torch.ones(3) + torch.ones(3)
    alike = "No error was born: no finite result differs from its companion."
    assert str(s.report()).startswith(f"{alike}\nNo backward() in the block")
    for run in (torch.full((3,), torch.inf), torch.full((3,), 0.1, dtype=torch.float64)):  # nothing exact is claimed
        with shadow() as other:
            run / 3 - run
        assert str(other.report()).startswith(alike)
    assert same(s.exact(x), x.double())
    refuses(lambda: s.exact(torch.arange(3)), r"exact: a Tensor of torch\.int64 has no companion")
    with pytest.raises(LabError, match="already entered"), s, s:
        pass


COMPILED = """
import torch
from fplab.errors import LabError
from fplab.nn import shadow
x = torch.randn(4, 4)
def tried(f):
    try:
        with shadow() as s:
            y = f(x)
        print("followed" if s.exact(y) is not None else "not followed")
    except LabError as error:
        print(str(error)[:64])
tried(lambda x: torch.compile(lambda a: a @ a + 1, backend="eager")(x))
product = torch.compile(lambda a: a @ a, backend="eager")
tried(product)
product(x)
tried(product)
print(torch.equal(product(x), x @ x))
with shadow():
    x @ x
"""


def test_torch_compile_is_refused_cached_or_not() -> None:
    refused = "torch.compile compiles inside fplab.nn.shadow, and its kernels"
    said = python(COMPILED, warnings="ignore").splitlines()
    assert [said[0][: len(refused)], *said[1:]] == [refused, "followed", "followed", "True"]


@pytest.mark.parametrize("kind", ["vmap", "grad", "vmap of grad", "jacrev", "layers"])
def test_what_torch_func_puts_around_tensors_is_followed_below_it(kind: str) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(3, 8)

    def run(net, x):
        def one(y):
            return torch.tanh(y @ net[0].weight)

        def total(y):
            return one(y).sum()

        found = {
            "vmap": lambda: torch.vmap(one)(x), "grad": lambda: torch.func.grad(total)(x),
            "vmap of grad": lambda: torch.vmap(torch.func.grad(total))(x),
            "jacrev": lambda: torch.func.jacrev(one)(x[0]), "layers": lambda: torch.vmap(net)(x),
        }  # fmt: skip
        return found[kind]().square().mean()

    with shadow() as s:
        loss = run(net, x)
        loss.backward()
    assert same(s.exact(loss), run(copy.deepcopy(net).double(), x.double()))
    assert not s.report().anew


# --- planted faults ---------------------------------------------------------------------------------------------------
class Planted(nn.Module):
    """A layer of a residual network with its norm, and perhaps one thing wrong with it."""

    fault = ""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def product(self, x):
        weight, k = self.inner.weight, x.shape[-1] // 4
        if self.fault == "split":
            parts = [x[:, i : i + k] @ weight[:, i : i + k].T for i in range(0, 4 * k, k)]
            return parts[0] + parts[1] + parts[2] + parts[3] + self.inner.bias
        if self.fault == "sum":
            terms = (x.unsqueeze(1) * weight).half()
            total = terms[..., 0]
            for i in range(1, terms.shape[-1]):
                total = total + terms[..., i]
            return total.float() + self.inner.bias
        return self.inner(x)

    def forward(self, x):
        if self.fault == "e4m3":
            x = quantize(x * 2**-6, "e4m3", overflow="saturate") * 2**6
        y = torch.tanh(self.product(x)) + x
        epsilon = 1e-5
        if self.fault == "epsilon":
            y, epsilon = torch.cat([y[:-1], torch.ones_like(y[-1:])]).half(), 1e-8
        y = y - y.mean(-1, keepdim=True)
        return (y / torch.sqrt(y.square().mean(-1, keepdim=True) + epsilon)).float()


def planted(fault, at):
    torch.manual_seed(at)
    model = nn.Sequential(*(Planted(32) for _ in range(5)), nn.Linear(32, 4))
    model[at].fault = fault
    x = torch.randn(8, 32)
    with shadow() as s:
        functional.cross_entropy(model(x), torch.arange(8) % 4).backward()
    return s.report()


NAMED = {
    "e4m3": "{at} (forward): values rounded to e4m3, ",
    "epsilon": "{at} (forward): the constant 1e-08 is below float16's range (smallest 6e-08) and is taken for 0 by "
    "add; div in float16 makes 32 values infinite or NaN that are finite.",
    "sum": "{at} (forward): a sum in float16: 31 additions of rounded results; ",
    "split": "{at} (forward): differs first: a product of k = 32 is summed in 4 parts (split-K: 8 + 8 + 8 + 8).",
}


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("fault", NAMED)
def test_planted_faults_are_named_in_the_first_line(fault, at):
    report = planted(fault, at)
    first = report.against(planted("", at)) if fault == "split" else report.diagnosis
    assert str(first).startswith(NAMED[fault].format(at=at))
    if fault == "e4m3":
        assert "a scale is missing" in str(first)
    if fault != "split":
        assert report.layer == str(at)
        assert " ".join(str(report).split()).startswith(" ".join(textwrap.wrap(str(first))))
    assert str(report.against(report)) == "No layer's errors differ between the two runs."
