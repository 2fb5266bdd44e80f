"""A slice of ``make withstand``: every part at its quick size, from one seed."""

from types import SimpleNamespace

import pytest
from withstand import Counts, absent, fuzz, parts
from withstand import __main__ as command


@pytest.mark.parametrize("name", parts())
def test_a_part_holds(name: str) -> None:
    if why := absent(parts()[name]):
        pytest.skip(why)
    counts = parts()[name].run(parts()[name].QUICK, 2026)
    assert not counts.faults, "\n".join(counts.faults)
    assert sum(counts.tried.values()) >= parts()[name].QUICK


def test_every_public_name_has_arguments_to_be_called_with() -> None:
    """A new one without ended the process of the calls at each of them."""
    assert not fuzz.without_arguments()


def test_faults_are_counted_and_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(size: int, seed: int) -> Counts:
        counts = Counts()
        for k in range(size):
            counts.add("draws", f"number {k} of {seed}" if k == 1 else "")
        return counts

    monkeypatch.setattr(command, "parts", lambda: {"made_up": SimpleNamespace(run=run, TITLE="a part", FULL=3)})
    assert command.main(["--seed", "5"]) == 1
    out = capsys.readouterr().out
    assert "made_up: 3 draws; 1 faults, 0 s\n  draws: number 1 of 5\n1 faults with seed 5\n" in out
    assert command.main(["--size", "1"]) == 0
