"""Shadows in double-double: each operation against fractions and 300 bits, a whole step against its formulas."""

from __future__ import annotations

import math
from fractions import Fraction

import gmpy2
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fplab import exact
from fplab.kernels import discrepancy
from fplab.nn import emulate, shadow
from fplab.training.transformer import transformer

U = 2.0**-53


def draw(*shape, seed=0, spread=0):
    generator = np.random.Generator(np.random.Philox(seed))
    values = generator.standard_normal(shape) * 2.0 ** generator.integers(-spread, spread + 1, shape)
    return torch.from_numpy(values)


def pairs(s, x):
    """The companion's values as fractions."""
    both = zip(s.exact(x).flatten().tolist(), s.rest(x).flatten().tolist(), strict=True)
    found = [Fraction(high) + Fraction(low) for high, low in both]
    for high, value in zip(s.exact(x).flatten().tolist(), found, strict=True):
        assert high == float(value)  # the first is the nearest
    return found


def fractions(x):
    return [Fraction(v) for v in x.flatten().tolist()]


OPERATIONS = {
    "add": (torch.add, lambda x, y: x + y, 4), "sub": (torch.sub, lambda x, y: x - y, 4),
    "mul": (torch.mul, lambda x, y: x * y, 8), "div": (torch.div, lambda x, y: x / y, 16),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic_on_pairs_is_right_to_about_106_bits(name):
    operation, want, units = OPERATIONS[name]
    x, y, z = draw(3, 4000, spread=30).unbind(0)
    with shadow("double-double") as s:
        a, b = x * y, y / z  # pairs that float64 has not
        found = operation(a, b)
    mine, theirs = (list(map(fun, x, y)) for fun, x, y in (
        (lambda p, q: p * q, fractions(x), fractions(y)), (lambda p, q: p / q, fractions(y), fractions(z))
    ))  # fmt: skip
    assert pairs(s, a) == mine  # a product of two float64 is a pair
    assert max(abs(p / q - 1) for p, q in zip(pairs(s, b), theirs, strict=True)) < 16 * U**2
    for got, p, q in zip(pairs(s, found), pairs(s, a), pairs(s, b), strict=True):
        assert abs(got - want(p, q)) <= units * U**2 * abs(want(p, q))
    assert not s.report().narrow


def test_sums_and_products_of_matrices_against_exact_ones():
    x, y = draw(7, 65, spread=20), draw(65, 9, seed=1, spread=20)
    with shadow("double-double") as s:
        out, total, mean = x @ y, (x * x).sum(0), x.mean()
        further = (x / 3) @ (y / 7)
    for row, column, value in zip(*np.unravel_index(range(63), (7, 9)), pairs(s, out), strict=True):
        terms = [list(map(exact.from_float, v.tolist())) for v in (x[row], y[:, column])]
        assert abs(value - exact.dot(*terms)[0].value) <= 65**2 * U**2 * float((x[row] * y[:, column]).abs().sum())
    for value, column in zip(pairs(s, total), x.T, strict=True):
        assert abs(value - sum(v * v for v in fractions(column))) <= 64 * U**2 * float((column * column).sum())
    assert abs(pairs(s, mean)[0] - sum(fractions(x)) / 455) <= 64 * U**2 * float(x.abs().mean())
    want = sum(p * q for p, q in zip(fractions(x[3]), fractions(y[:, 4]), strict=True)) / 21
    assert abs(pairs(s, further)[3 * 9 + 4] - want) <= 65**2 * U**2 * float((x[3] * y[:, 4]).abs().sum())
    assert not s.report().narrow


FUNCTIONS = {"exp": 8.0, "expm1": 8.0, "log": 1.0, "sqrt": 1.0, "rsqrt": 1.0, "tanh": 1.0, "sigmoid": 1.0}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_against_300_bits(name):
    x = draw(300, seed=2, spread=6)
    x = x.abs() if name in ("log", "sqrt", "rsqrt") else x
    with gmpy2.context(precision=300), shadow("double-double") as s:
        found = getattr(torch, name)(x)
        for got, value in zip(pairs(s, found), map(gmpy2.mpfr, x.tolist()), strict=True):
            want = {
                "sigmoid": lambda v: 1 / (1 + gmpy2.exp(-v)), "rsqrt": lambda v: 1 / gmpy2.sqrt(v)
            }.get(name, getattr(gmpy2, name, None))(value)  # fmt: skip
            near = abs(want) if name != "log" else max(abs(want), 1)
            if abs(want) > 2.0**-960:  # else its second half is subnormal
                assert abs(gmpy2.mpq(got) - want) <= 2.0**-96 * FUNCTIONS[name] * near
    assert not s.report().narrow


def test_a_step_of_training_in_fp64_against_its_formulas_in_300_bits():
    torch.manual_seed(3)
    first, last = nn.Linear(3, 4).double(), nn.Linear(4, 3).double()
    x, target = draw(1, 3, seed=4), 1
    weights = [[[gmpy2.mpfr(v) for v in row] for row in p.reshape(len(p), -1).tolist()]
               for p in (first.weight, first.bias, last.weight, last.bias)]  # fmt: skip
    with shadow("double-double") as s:
        hidden = torch.tanh(first(x))
        loss = functional.cross_entropy(last(hidden), torch.tensor([target]))
        loss.backward()
        torch.optim.SGD(first.parameters(), 0.1, momentum=0.9).step()
    with gmpy2.context(precision=300):
        w, b, v, c = weights
        data = [gmpy2.mpfr(one) for one in x[0].tolist()]
        h = [gmpy2.tanh(sum(p * q for p, q in zip(row, data, strict=True)) + k[0]) for row, k in zip(w, b, strict=True)]
        out = [sum(p * q for p, q in zip(row, h, strict=True)) + k[0] for row, k in zip(v, c, strict=True)]
        whole = sum(map(gmpy2.exp, out))
        back = [gmpy2.exp(o) / whole - (i == target) for i, o in enumerate(out)]
        rise = [sum(back[i] * v[i][j] for i in range(3)) * (1 - h[j] ** 2) for j in range(4)]
        step = [[w[j][k] - gmpy2.mpfr(0.1) * rise[j] * data[k] for k in range(3)] for j in range(4)]
        wants = [(loss, [gmpy2.log(whole) - out[target]]), (first.bias.grad, rise), (last.bias.grad, back),
                 (first.weight, [one for row in step for one in row])]  # fmt: skip
        for tensor, want in wants:
            for got, value in zip(pairs(s, tensor), want, strict=True):
                assert abs(gmpy2.mpq(got) - value) < 2.0**-94
    report = s.report()
    assert not report.narrow
    assert not report.anew
    assert 0 < abs(report.whole) < 1e-15  # a shadow in FP64 finds none
    assert abs(report.rest) < 1e-6 * math.sqrt(math.fsum(row.weight**2 for row in report.rows))
    assert all(row.born < 4 * U for row in report.rows)


def test_norms_softmax_and_attention_are_taken_apart():
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation=functional.silu).double()
    x = draw(2, 4, 8, seed=6)
    with shadow() as plain:
        layer(x).square().mean().backward()
    gradients = [plain.exact(p.grad) for p in layer.parameters()]
    layer.zero_grad()
    with shadow("double-double") as s:
        layer(x).square().mean().backward()
    for p, other in zip(layer.parameters(), gradients, strict=True):
        assert torch.allclose(s.exact(p.grad), other, rtol=1e-9, atol=1e-14)
        assert bool((s.rest(p.grad).abs() <= U * s.exact(p.grad).abs()).all())
    assert bool(plain.report().whole == 0)
    assert s.report().whole != 0


def test_places_views_and_what_is_not_finite_are_float64_s():
    x = torch.tensor([[1e150, 0.0, math.inf, math.nan], [-1e100, 1e-150, 3.0, -math.inf]], dtype=torch.float64)
    with shadow("double-double") as s:
        y = x / 3 * 3
        y[0] *= 1e10
        y[:, 1] += 1
        y.T[2].sub_(y[:, 0])
        high = y.amax(1)
        results = [y, y.exp(), (y / y).tanh(), torch.maximum(y, y.flip(0)), high]
        error = torch.erf(y)
    for result in results:
        assert torch.equal(s.exact(result).isfinite(), result.isfinite())
        assert bool(s.rest(result).isfinite().all())
        assert torch.allclose(s.exact(result), result, rtol=1e-14, atol=0, equal_nan=True)
    assert torch.allclose(s.exact(error), torch.erf(s.exact(y)), rtol=0, atol=0, equal_nan=True)
    assert not s.rest(error).any()
    assert s.report().narrow == ("erf", "maximum")
    assert "In FP64 only, having no double-double form: " in str(s.report())
    assert not s.report().anew


def test_errors_below_float64_are_counted():
    true = draw(500, seed=7).numpy()
    low = true * 2.0**-60
    out, real = np.empty((1, discrepancy.COLUMNS)), true.copy()
    errors = np.empty(500, np.float32)
    discrepancy.discrepancies(real, true, true, low, low, 1e-300, 1e300, 0.0, errors, out, 0, 1)
    assert np.array_equal(errors, -low.astype(np.float32))
    assert out[0, discrepancy.BORN] == out[0, discrepancy.TOTAL] == pytest.approx(np.sum(low**2), rel=1e-12)
    assert out[0, discrepancy.WORST] == 2.0**-60
    discrepancy.discrepancies(real, true, true, None, None, 1e-300, 1e300, 0.0, errors, out, 0, 1)
    assert out[0, discrepancy.TOTAL] == 0


def test_beside_an_emulation_the_run_keeps_its_bits():
    text = torch.randint(96, (2, 16), generator=torch.Generator().manual_seed(0))
    found = []
    for precision in ("fp64", "double-double"):
        model = transformer(0)
        with emulate("H100", "fp16"), shadow(precision) as s:
            loss = functional.cross_entropy(model(text).flatten(0, 1), text.flatten())
            loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()], float(s.exact(loss)), s.report()))
    (one, mine, value, report), (other, theirs, finer, fine) = found
    assert torch.equal(one, other)
    assert all(map(torch.equal, mine, theirs))
    assert value == pytest.approx(finer, rel=1e-14)
    assert report.whole == pytest.approx(fine.whole, rel=1e-9)
    assert report.layer == fine.layer
    assert fine.narrow == ("_scaled_dot_product_flash_attention_for_cpu_backward", "erf", "index_put")
