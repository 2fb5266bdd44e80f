"""What the doors of the lab say of arguments of another type, and that they hide none of the lab's own faults."""

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
import refusals
import torch
from refusals import refuses

import fplab
from fplab.errors import LabError, door, fits, quotes_call


def nested() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)


test_the_argument_is_named = refusals.matching(
    (lambda: fplab.quantize(torch.float32, "fp16"), r"^fplab\.quantize\(torch\.float32, 'fp16'\): x is of type dtype"),
    (lambda: fplab.tensorcore.matmul([[1]], [[1]], plan="x"),
     r": plan='x' is not possible; allowed: a Plan or a PlanByRows or None\.$"),
    (lambda: fplab.tensorcore.get("H100", None),
     r"inputs=None is neither a name nor a pair of names\. Allowed: fp16, "),
    (lambda: fplab.training.fit(None), r"unknown task None\. Allowed: digits, digits_mlp, characters\.$"),
    (lambda: fplab.codebooks.Rule("r", "", divides="x"), r"^divides='x' is not possible; allowed: True or False\.$"),
    (lambda: fplab.training.Adam([torch.nn.Parameter(torch.ones(1))], betas=(0.9,)),
     r": betas=\(0\.9,\) are not two numbers, such as \(0\.9, 0\.999\)\.$"),
    (lambda: fplab.training.SGD([]), r": params=\[\] is not possible; allowed: tensors, or groups"),
    (lambda: fplab.training.AdamW(range(10**12)), r": params=range\(0, 1000000000000\) is not poss"),
    (lambda: fplab.training.Adam(np.zeros((2**40, 0)), foreach=0), r": params=float64\[1099511627776, 0\] is not poss"),
    (lambda: fplab.exact.add(1.5, 2.0), r"^a=1\.5 is not possible; allowed: a Exact\.$"),
    (lambda: fplab.nn.Int8Linear(torch.nn.Linear(2, 2, device="meta")),
     r"^linear is on the device meta, where there are no values to quantise\.$"),
    (lambda: fplab.nn.fake_quantize(torch.ones(4), 1.0, axis=10**5000), r": axis=<int> of a tensor of 1 dim"),
    (lambda: fplab.training.Adagrad8bit([torch.nn.Parameter(torch.ones(4))], state_bits=10**5000),
     r": state_bits=<int> is not possible; allowed: 8, 32\.$"),
    (lambda: fplab.training.StableEmbedding(4, -1), r"^embedding_dim=-1 is not possible; allowed: 1 to "),
    (lambda: fplab.training.StableEmbedding(0, 2**31), r"^embedding_dim=2147483648 is not possible; allowed: 1 to 104"),
    (lambda: fplab.memory.trace(torch.nn.Linear(2, 2), torch.ones(1, 2), device="fp16"),
     r"device='fp16' is none of torch's; allowed: cpu, cuda or meta\.$"),
    (lambda: fplab.nn.observe(torch.nn.Sequential(torch.nn.Linear(3, 2)), [torch.ones(1, 3, device="meta")]),
     r"inputs of layer '0' are on the device meta"),
    (lambda: fplab.nn.int8_linears(torch.nn.Sequential(torch.nn.Linear(3, 2)), skip=range(1000)),
     r"skip names \[0, 1, .{,420}\.\.\., but the linear layers are \['0'\]\.$"),
    (lambda: fplab.training.batches(np.ones((2, 2)), fplab.training.Recipe()),
     r"^examples=float64\[2, 2\] is not an integer; allowed: 1 to 268435456\.$"),
    (lambda: fplab.training.batches(10**30, fplab.training.Recipe()), r"^examples=1000+ is not possible; allowed: 1"),
    (lambda: fplab.training.Policy("p", "", logits=np.ones(2)), r"^unknown logits of policy 'p' float64\[2\]\. Allow"),
    (lambda: fplab.training.Policy("p", "", cast=[1]), r"^unknown cast of policy 'p' \[1\]\. Allowed: fp32, fp16"),
    (lambda: fplab.training.Policy("p", "", recipe=[1]),
     r"^recipe=\[1\] is not possible; allowed: a string or a Recipe or None"),
    (lambda: fplab.scaled.Scheme("s", "e4m3", "e8m0", rule=np.ones(2)),
     r"^rule=float64\[2\] is not possible; allowed: a string\.$"),
    (lambda: fplab.scaled.Scheme("s", "e4m3", "e8m0", np.ones((2, 2))), r"^block=float64\[2, 2\] is not poss"),
    (lambda: fplab.nn.fake_quantize(nested(), 1.0), r": x is sparse, nested or has no values; fake quantisation takes"),
    (lambda: fplab.nn.fake_quantize(torch.ones(2), nested()), r": scale and zero_point are numbers, or tensors of one"),
    (lambda: fplab.nn.fake_quantized(torch.nn.Linear(2, 2), range(10**12), fplab.nn.Quantization()),
     r": seen=range\(0, 1000000000000\) is not possible; allowed: what observe\(model, batches\) gives\.$"),
    (lambda: fplab.nn.recipes.fp8_block(keep_types=[]), r": keep_types=\[\] is no tuple of classes, such as \(nn\.E"),
    (lambda: fplab.experiments.show("underflow", np.uint8(9)), r"full=np\.uint8\(9\) is not possible; allowed: True"),
    (lambda: fplab.nn.fake_quantize(torch.ones(2), 0.5, range(10**12)), r": scale and zero_point are numbers, or tens"),
    (lambda: fplab.nn.fake_quantize(torch.ones(3, device="meta"), 0.5), r": x is sparse, nested or has no values; "),
    (lambda: fplab.nn.device.quantize(torch.ones(3, device="meta"), "fp16"), r": x must be a dense tensor of float32"),
    (lambda: fplab.nn.device.matmul(nested(), torch.ones(4, 3)), r": a is sparse, nested or has no values; dense"),
    (lambda: fplab.nn.recipes.fp8_block(w_block_scaling_dim=10**5000), r": w_block_scaling_dim=<int> is not possible"),
    (lambda: fplab.memory.estimate(torch.nn.Linear(2, 2), inputs=torch.ones(0)), r"does not run on shapes alone"),
    (lambda: fplab.nn.quantize(nested(), "bf16"), r": tensor is sparse or nested; dense tensors are rounded\.$"),
    (lambda: fplab.memory.estimate(torch.nn.Linear(2, 2), inputs=refusals.itself()), r"inputs hold themselves or"),
    (lambda: fplab.memory.estimate(torch.nn.Linear(2, 2), inputs=nested()), r"inputs hold themselves or a tensor that"),
    (lambda: fplab.scaled.hadamard([1.0] * 16, signs=range(10**12)), r": signs=range\(0, 1000000000000\) is not poss"),
    (lambda: fplab.nn.emulate(plan=("fp16",)), r": plan=\('fp16',\) is not possible; allowed: a Plan or a PlanByRows"),
    (lambda: fplab.nn.device.matmul(torch.ones(3, 4), torch.ones(4, 3), c=torch.ones(2, 2)),
     r": c has shape \(2, 2\), which does not broadcast to the result's \(3, 3\)\.$"),
    (lambda: dataclasses.replace(fplab.tensorcore.get("V100"), length=10**5000), r"^length=<int> is not possible for "),
    (lambda: fplab.training.StableEmbedding(2**39, 4), r"^there is not enough memory for an array of 8796093022208 by"),
    (lambda: fplab.sum(np.zeros((2**40, 0)), "fp16"), r": there is not enough memory for an array of 1\.00 TiB\.$"),
    (lambda: fplab.nn.device.quantize(nested(), "fp16"), r": x must be a dense tensor of float32 or fewer bits;"),
    (lambda: fplab.nn.device.quantize_scaled(torch.ones(32), amax=torch.ones(1, device="meta")),
     r": amax is sparse, nested or has no values; pass a number, or one of each row\.$"),
    (lambda: fplab.quantize(1.0, nested()), r"^fplab\.quantize\(1\.0, .*\): unknown format .*\. Allowed: fp64, "),
    (lambda: fplab.memory.Tensor("w", range(10**9)), r"^shape=range\(0, 1000000000\) is not possible; allowed: a seq"),
    (lambda: fplab.tensorcore.get("H100", range(10**9)), r"^inputs=range\(0, 1000000000\) is neither a name nor a"),
    (lambda: fplab.formats.get("fp12"), r" Did you mean 'fp16'\?$"),
    (lambda: fplab.training.characters(name=3), r"^name=3 is not possible; allowed: a string\.$"),
    (lambda: fplab.pages.write(limit=np.ones(2)), r"^limit=float64\[2\] is not possible; allowed: an int"),
    (lambda: fplab.bounds.sums(None, fmt="fp16"), r": x is of type NoneType; allowed: float32"),
    (lambda: fplab.claims.get(["a"]), r"^name=\['a'\] is not possible; allowed: a string\.$"),
)  # fmt: skip


def test_a_share_may_be_a_fraction() -> None:
    recipe = fplab.nn.recipes.bf16(keep_last=Fraction(1, 3))
    with fplab.nn.emulate(recipe=recipe):
        torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))(torch.ones(1, 2))


@pytest.mark.parametrize("decorate", [door, quotes_call])
def test_a_fault_of_the_lab_stays_what_it_is(decorate):
    @decorate
    def faulty(x: int, names: Sequence[str] = ()) -> int:
        return {}[x]

    with pytest.raises(KeyError):
        faulty(1, ["a"])
    refuses(lambda: faulty("1"), r"x='1' is not possible; allowed: an integer")
    refuses(lambda: faulty(1, [1]), r"names=\[1\] is not possible; allowed: a sequence, each a string")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        faulty()


def test_a_class_refuses_at_once():
    @door
    class Record:
        def __init__(self, size: int) -> None:
            self.size = size

    assert Record(3).size == 3
    refuses(lambda: Record(1.5), r"size=1\.5 is not possible")


KINDS: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [1, np.uint8(1), torch.tensor(1)], [True, 1.0, "1", None, np.ones(2, int), 1j]),
    (float, [1, 1.5, np.float16(1), Fraction(1, 3), torch.tensor(1.0)], [True, "1.5", None, 1j, np.ones(2), 10**5000]),
    (bool, [True, np.bool_(False)], [1, "x", None, np.ones(2, bool)]),
    (Fraction, [1, Fraction(1, 3)], [1.5, "1/3"]),
    (str | None, ["a", None], [1, b"a"]),
    (Literal["a", 1], ["a", 1], ["b", True, None, []]),
    (tuple[float, float], [(1, 2.0), [1, 2]], [(1,), (1, 2, 3), ("a", "b"), 3]),
    (tuple[int, ...], [(), (1, 2)], [("a",), 1]),
    (Sequence[str], ["ab", ["a"], ("a", "b")], [[1], 3, iter("ab")]),
    (Iterable[str], ["ab", iter("ab"), {"a": 1}], [[1], None]),
    (np.ndarray[Any, Any], [np.ones(2), [1.0], 2.0], [np.array(["a"]), "x", None]),
    (Any, [None, object()], []),
]


@pytest.mark.parametrize(("kind", "those", "others"), KINDS, ids=range(len(KINDS)))
def test_what_fits_a_type(kind, those, others):
    for value in those:
        assert fits(value, kind), value
    for value in others:
        assert not fits(value, kind), value


@pytest.mark.parametrize(
    ("call", "text"),
    [(lambda x: fplab.training.StaticScaler(x), "scale=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1... "),
     (lambda x: fplab.training.StaticScaler(np.array(x)), "scale=float64[100000] is not a number"),
     (lambda x: fplab.training.StaticScaler(torch.tensor(x)), "scale=float32[100000] is not a number"),
     (lambda x: fplab.tensorcore.get("H100").with_options(floor_rule=np.ones(99)), "floor_rule=float64[99] is no"),
     (lambda x: fplab.scaled.hadamard([1.0] * 16, signs=[0.0, *x]), "signs=[0.0, 1.0, "),
     (lambda x: fplab.tensorcore.get("H100", output=x), "unknown format '[1.0, 1.0, "),  # it took minutes
    (lambda x: fplab.formats.get("x" * 100_000), "unknown format 'xxx")],
)  # fmt: skip
def test_no_refusal_quotes_a_whole_array(call: Any, text: str) -> None:
    with pytest.raises(LabError) as caught:
        call([1.0] * 100_000)
    said = str(caught.value)
    assert text in said
    assert len(said) < 1000
    assert "\n" not in said


def test_a_long_refusal_keeps_its_ends() -> None:
    text = str(LabError("begins" + "x" * 10_000 + "ends."))
    assert len(text) < 2_000
    assert text.startswith("begins")
    assert text.endswith("ends.")


def test_a_collective_of_a_thousand_ranks_is_shown_in_a_line() -> None:
    said = repr(fplab.parallel.all_reduce(1023))
    assert said == "<all-reduce (ring) on 1023 ranks: 2,091,012 messages in 2,044 steps>"
