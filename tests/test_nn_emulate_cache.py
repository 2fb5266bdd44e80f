"""Attention whose keys and values pass through a cache of few bits, against NumPy and the lab's own quantisers."""

import copy

import numpy as np
import pytest
import torch
from refusals import refuses
from torch.nn.functional import scaled_dot_product_attention

import fplab
from fplab import nn
from fplab.errors import LabError
from fplab.nn.emulation.cached import CACHES, cached

SHAPE = 2, 4, 7, 32  # batch, heads, tokens, head dimension


def drawn(seed: int, heads: int = 4, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, heads, 7, 32, generator=generator)
    return (x * torch.exp2(torch.randint(-12, 11, x.shape, generator=generator))).to(dtype)


def by_numpy(x: np.ndarray, cache: str) -> np.ndarray:
    """What a cache gives back for float32, one element after the other where that is plain."""
    if cache == "fp8":
        return np.asarray(fplab.quantize(x, "e4m3", overflow="saturate"))
    if cache == "nvfp4":
        return np.asarray(fplab.scaled.quantize(x, "nvfp4").dequantize())
    result = np.empty_like(x)
    for place in np.ndindex(x.shape[:-1]):
        scale = np.float32(np.abs(x[place]).max() / np.float32(127))
        result[place] = [np.float32(round(float(np.float32(e / scale))) * scale) if scale else e for e in x[place]]
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_gives_back_the_numbers_of_its_format(cache, dtype):
    x = drawn(1, dtype=dtype)
    x[0, 0, 3] = 0  # a token whose scale is 0
    want = torch.from_numpy(by_numpy(x.float().numpy(), cache)).to(dtype)
    assert torch.equal(cached(x, cache), want)
    assert cached(x, None) is x


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("heads", "causal"), [(4, True), (2, False)])
def test_attention_multiplies_what_the_cache_gives_back(cache, heads, causal):
    q, k, v = drawn(2).clamp(-4, 4), drawn(3, heads), drawn(4, heads)
    how = {"is_causal": causal, "enable_gqa": heads != 4}
    with torch.no_grad(), nn.emulate("H100", kv_cache=cache):
        got = scaled_dot_product_attention(q, k, v, **how)
    with torch.no_grad(), nn.emulate("H100"):
        want = scaled_dot_product_attention(q, cached(k, cache), cached(v, cache), **how)
        plain = scaled_dot_product_attention(q, k, v, **how)
    assert torch.equal(got, want)
    assert not torch.equal(got, plain)


def test_what_a_cache_cannot_say_is_refused():
    q = drawn(5, dtype=torch.float32)
    refuses(lambda: nn.emulate("H100", kv_cache="fp9"), r"unknown kv_cache 'fp9'. Allowed: fp8, int8, nvfp4.")
    with (
        nn.emulate("H100", kv_cache="int8"),
        pytest.raises(LabError, match=r"two tensors that are no weights, with kv"),
    ):
        q @ q.transpose(-1, -2)
    x = q.requires_grad_()
    with nn.emulate("H100", kv_cache="int8"):
        out = scaled_dot_product_attention(x, x, x)
    refuses(lambda: out.sum().backward(), r"kv_cache is of inference and has no backward pass")


class Attending(torch.nn.Module):
    """One layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("cache", CACHES)
def test_shadow_tells_what_a_cache_costs_in_each_layer(cache):
    """Beside what the products cost: the errors of keys and values, and exact results without a cache."""
    net = torch.nn.Sequential(Attending(), torch.nn.Tanh(), Attending())
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(7))
    passed, attention = [], scaled_dot_product_attention
    with torch.no_grad(), nn.emulate("H100", inputs="bf16", kv_cache=cache), nn.shadow() as s:
        got = net(x)
    with torch.no_grad(), nn.emulate("H100", inputs="bf16", kv_cache=cache), pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.scaled_dot_product_attention", lambda *of: passed.append(of[1:]) or attention(*of))
        assert torch.equal(got, net(x))
    exact = copy.deepcopy(net).double()(x.double())
    torch.testing.assert_close(s.exact(got), exact, rtol=1e-12, atol=1e-12)
    report = s.report()
    for layer, given in zip(("0", "2"), passed, strict=True):
        [(where, tally)] = [(w, t) for w, t in report.operations.items() if w[:3] == (layer, "forward", "kv_cache")]
        assert (where.format, tally.calls) == (cache, 2)
        both = torch.stack(given).double()
        lost = torch.stack([cached(x, cache) for x in given]).double() - both
        assert tally.born == pytest.approx(float(lost.norm() / both.norm()), rel=0.02)  # of the exact keys and values
    assert f"keys and values through a cache of {cache}" in str(report.diagnosis)


def test_explain_finds_the_layer_whose_cache_it_is():
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(7))
    ways = {"gpu": "H100", "inputs": "bf16"}, {"gpu": "H100", "inputs": "bf16", "kv_cache": "fp8"}
    explanation = nn.explain(Attending(), x, *ways, progress=str)
    assert explanation.whole > 0
    assert [row.layer for row in explanation.rows] == ["Attending"]  # whose own operation attention is
