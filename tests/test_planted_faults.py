"""Two programs that differ in one drawn fault: explain names its kind and its place, and never another's."""

from itertools import count

import planted_faults
import pytest
import torch

from fplab import LabError
from fplab.nn import capture, explain
from fplab.nn.diagnose.dump_explanation import SAME


def test_of_forty_drawn_faults_nine_in_ten_are_named_and_none_is_misled() -> None:
    lines: list[str] = []
    table = planted_faults.table(count(), 40, lines.append)
    verdicts = [one for found in table.values() for one in found.elements()]
    assert len(verdicts) == 40
    assert len(table) >= 15
    assert "misled" not in verdicts, lines
    assert verdicts.count("named") >= 36, lines


def test_every_word_of_an_answer_agrees_with_its_causes() -> None:
    """A fault in two places has two causes; their parts are all of the difference, and none is left."""
    case = planted_faults.drawn(next(n for n in count() if planted_faults.drawn(n).fault == "eps"))
    block = case.models[1].layers[-1]
    block.residual = 0.75
    said = planted_faults.answer(case)
    assert {str(row.kind) for row in said.rows} == {"eps", "scale"}
    assert all(row.exact for row in said.rows)
    assert sum(row.share for row in said.rows) == pytest.approx(1, abs=1e-9)
    assert abs(said.rest) < 1e-9
    text = str(said)
    assert str(SAME) not in text
    assert "Causes found: 2, with 100.0% of the difference at the output" in text
    assert case.module in text


def test_programs_that_are_one_are_said_to_be(tmp_path) -> None:
    a = planted_faults.drawn(0).models[0]
    x = planted_faults.drawn(0).inputs[0]
    said = explain(lambda: a(x), lambda: a(x))
    assert (said.whole, said.rows, str(said.text)) == (0, (), str(SAME))
    with capture(a, tmp_path):
        a(x)
    assert explain(tmp_path, lambda: a(x)).whole == 0
    said.save(tmp_path / "answer")
    assert {path.name for path in (tmp_path / "answer").iterdir()} == {
        f"explain.{x}" for x in ("csv", "json", "txt", "html")
    }


@pytest.mark.parametrize("draw", [lambda *n: torch.randint(-9, 9, n).float(), torch.randn])
def test_other_names_a_joined_projection_and_transposed_weights_are_followed(draw) -> None:
    torch.manual_seed(1)
    x, parts = draw(4, 80), [torch.nn.Parameter(draw(8, 80)) for _ in range(3)]

    class Joined(torch.nn.Module):
        def __init__(self, eps: float) -> None:
            super().__init__()
            self.qkv, self.eps = torch.nn.Parameter(torch.cat(parts).T.contiguous()), eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (x @ self.qkv).chunk(3, -1)
            return torch.nn.functional.layer_norm(q * k + v, (8,), eps=self.eps)

    def apart() -> torch.Tensor:
        q, k, v = (x @ p.T for p in parts)
        return torch.nn.functional.layer_norm(q * k + v, (8,), eps=1e-5)

    joined = Joined(1e4)
    said = explain(apart, lambda: joined(x))
    *before, last = said.rows
    assert (str(last.kind), last.facts, last.exact) == ("eps", {"eps": ("1e-05", "10000")}, True)
    assert {str(row.kind) for row in before} <= {"order of reduction"}  # none where sums are exact
    assert not before or draw is torch.randn
    assert said.rest == 0


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(LabError, match="holds no dump that fplab can read: No such file"):
        explain("nowhere", "nowhere")
    with pytest.raises(LabError, match="pass the folder of a dump, or a function"):
        explain(lambda: None, 3)  # type: ignore[call-overload]
