"""Log-probabilities of a trainer and a rollout: against torch's own operations, remedies done by hand, logs, errors."""

import copy
import json
from pathlib import Path
from typing import Any

import family_steps
import numpy as np
import pytest
import torch
from torch import nn

from fplab import LabError
from fplab.nn import Way, emulate, rollout_gap
from fplab.tensorcore import Plan

BF16 = {"gpu": "H100", "inputs": "bf16"}


def with_large_weights(result: Any) -> Any:
    """A model whose ways differ."""
    with torch.no_grad():
        for weight in result.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return result.eval()


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return with_large_weights(family_steps.llama(hidden_size=128, intermediate_size=256))


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(family_steps.WORDS, (3, 7), generator=torch.Generator().manual_seed(1))


def by_hand(model: Any, tokens: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Log-probabilities of all tokens but the first, (n,), as a user computes them."""
    with torch.no_grad():
        if settings:
            with emulate(**settings):
                logits = model(tokens[:, :-1]).logits
        else:
            logits = model(tokens[:, :-1]).logits
    rows = torch.log_softmax(logits.float(), -1)
    return torch.stack([rows[i, j, t] for i, row in enumerate(tokens[:, 1:]) for j, t in enumerate(row)]).double()


def gap(*given: Any, **how: Any) -> Any:
    return rollout_gap(*given, **{"progress": str, "most": 1, **how})


def test_each_token_has_the_bits_of_a_run_by_hand_and_figures_their_definition(model: Any, tokens: Any) -> None:
    found = gap(Way(model=model, **BF16), {"gpu": "H100", "recipe": "fp8_current"}, tokens, cap=1.001, most=None)
    sides = by_hand(model, tokens, **BF16), by_hand(model, tokens, gpu="H100", recipe="fp8_current")
    assert [row.trainer for row in found.rows] == sides[0].tolist()
    assert [row.rollout for row in found.rows] == sides[1].tolist()
    assert [(r.sequence, r.position, r.token) for r in found.rows] == [
        (i, j + 1, int(t)) for i, row in enumerate(tokens[:, 1:]) for j, t in enumerate(row)
    ]
    apart = (sides[1] - sides[0]).numpy()
    w = np.exp(-apart)
    assert found.size == pytest.approx(np.abs(apart).mean(), rel=1e-14)
    assert found.kl == pytest.approx((w - 1 + apart).mean(), rel=1e-9)
    less = np.minimum(w, 1.001)
    for weights, x in ((found.weights, w), (found.truncated, less)):
        expected = x.mean(), x.max(), x.sum() ** 2 / (x.size * (x**2).sum())
        assert (weights.mean, weights.most, weights.effective) == pytest.approx(expected, rel=1e-12)
    assert found.cut == (w > 1.001).mean() > 0
    assert found.truncated.effective > found.weights.effective
    whole = found.explanation
    assert whole.whole == pytest.approx(np.sqrt((apart**2).mean()))
    assert whole.largest.causes["recipe"] == ("-", "fp8_current")


NARROW = {"gpu": "H100", "recipe": "fp8_current"}, {"gpu": "H100"}
SPLIT = {**BF16, "plan": Plan(split_k=4)}, BF16


@pytest.mark.parametrize(("rollout", "trainer", "narrow"), [(*SPLIT, False), (*NARROW, True)], ids=["plan", "fp8"])
def test_remedies_are_what_is_done_by_hand(rollout: Any, trainer: Any, narrow: bool, model: Any, tokens: Any) -> None:
    """A model of FP32 whose products are BF16's, sums in another order; one of BF16, rolled out in FP8."""
    model = copy.deepcopy(model).bfloat16() if narrow else model
    found = gap(Way(model=model, **trainer), rollout, tokens)
    values = {str(one.name): one.size for one in found.remedies}
    half, headless = copy.deepcopy(model).half() if narrow else model, copy.deepcopy(model)
    headless.lm_head = nn.Identity()

    def with_head(settings: Any) -> torch.Tensor:
        with torch.no_grad():
            with emulate(**settings):
                states = headless(tokens[:, :-1]).logits.float()
            with emulate("H100", "fp32", plan=settings.get("plan")):
                scores = nn.functional.linear(states, model.lm_head.weight.float()).log_softmax(-1)
        return scores.gather(-1, tokens[:, 1:, None]).double()

    in_fp16 = [by_hand(half, tokens, **way | ({} if narrow else {"inputs": "fp16"})) for way in (rollout, trainer)]
    assert values["FP16 instead of BF16 on both sides"] == float((in_fp16[0] - in_fp16[1]).abs().mean())
    head = (with_head(rollout) - with_head(trainer)).abs().mean()
    assert values["FP32 output head on both sides"] == float(head) != found.size
    assert values.get("the rollout in the trainer's order of sums (batch-invariant)") == (None if narrow else 0)
    assert "FP32 output head on both sides" in str(found)


def test_what_a_server_logged_is_the_rollout(model: Any, tokens: Any, tmp_path: Path) -> None:
    narrow = by_hand(model, tokens, **BF16).view(3, 6)
    log = [{"tokens": row.tolist(), "logprobs": [None, *values[3:].tolist()]}
           for row, values in zip(tokens, narrow, strict=True)]  # fmt: skip
    (tmp_path / "log.json").write_text(json.dumps(log))
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, log)))
    found = [gap(model, None, logged=given) for given in (log, tmp_path / "log.json", str(tmp_path / "log.jsonl"))]
    found.append(gap(model, None, tokens.tolist(), logged=[values[3:].tolist() for values in narrow]))
    assert len({one.csv() for one in found}) == 1
    assert [row.rollout for row in found[0].rows] == narrow[:, 3:].flatten().tolist()
    assert [row.trainer for row in found[0].rows] == by_hand(model, tokens).view(3, 6)[:, 3:].flatten().tolist()
    assert found[0].explanation is None
    right, wrong = gap(model, BF16, logged=log), gap(model, {"gpu": "H100", "recipe": "fp8_current"}, logged=log)
    assert right.logged == 0 < wrong.logged  # the log has the bits of the right guess
    assert right.explanation.whole > 0
    wrong.save(tmp_path)
    assert len(json.loads((tmp_path / "rollout_gap.json").read_text())["rows"]) == 9


def test_a_scale_of_fewer_rows_is_a_gap_that_a_batch_invariant_rollout_closes(model: Any, tokens: Any) -> None:
    fp8 = {"gpu": "H100", "recipe": "fp8_current"}
    found = gap(Way(model=model, **fp8), {**fp8, "rows": 1}, tokens)
    assert [one.size == 0 for one in found.remedies] == [False, True]
    assert found.size > 0


def test_sequences_of_other_lengths_and_starts(model: Any, tokens: Any) -> None:
    prompts = [tokens[0].tolist(), tokens[1, :5].tolist(), tokens[2].tolist()]
    found = gap(Way(model=model, **BF16), BF16, prompts, start=[4, 2, 6])
    assert [(r.sequence, r.position) for r in found.rows] == [(0, 4), (0, 5), (0, 6), (1, 2), (1, 3), (1, 4), (2, 6)]
    assert found.size == 0 == found.kl
    assert (found.weights.effective, found.remedies) == (1, ())
    assert [r.trainer for r in found.rows[3:6]] == by_hand(model, tokens[1:2, :5], **BF16)[1:].tolist()


def test_what_is_no_request_is_refused_in_words(model: Any, tokens: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[1, ")
    for given, how, why in (
        ((3, BF16, tokens), {}, "trainer is a int"),
        ((Way(**BF16), BF16, tokens), {}, "trainer is a way without a model"),
        ((model, None, tokens), {}, "nothing was logged"),
        ((model, BF16), {}, "prompts=None: no tokens are known"),
        ((model, BF16, [[1, 2], ["a", "b"]]), {}, "no token ids"),
        ((model, BF16, tokens.float()), {}, "sequence 0 of prompts is .7,. of torch.float32"),
        ((model, BF16, [[1]]), {}, "pass two token ids or more"),
        ((model, BF16, [[1, 10**6]]), {}, "not in the model's vocabulary"),
        ((model, BF16, [[10**6, 1]]), {}, "not in the model's vocabulary"),
        ((model, BF16, tokens), {"start": 7}, "start=7"),
        ((model, BF16, tokens), {"start": [1]}, "start has 1 numbers"),
        ((model, BF16, tokens), {"cap": 0}, "cap=0"),
        ((model, None, tokens), {"logged": [[-1.0]]}, "3 sequences, and 1 were logged"),
        ((model, None, tokens), {"logged": [[0.5], [-1], [-1]]}, "finite and at most 0"),
        ((model, None, tokens), {"logged": [[-1.0] * 7] * 3}, "too many"),
        ((model, None, tokens), {"logged": [[None]] * 3}, "all are null"),
        ((model, None, tokens), {"logged": str(tmp_path / "bad.json")}, "is no JSON"),
        ((model, None, tokens), {"logged": tmp_path / "none.json"}, "is no JSON .FileNotFoundError"),
        ((model, None), {"logged": [[-1.0]]}, "no tokens are known"),
    ):
        with pytest.raises(LabError, match=why):
            gap(*given, **how)
