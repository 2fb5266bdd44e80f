"""What ``make test`` leaves out is in parts that have names, none empty, and ``make test-all`` runs all."""

import subprocess
import sys
from pathlib import Path

import pytest
from parts import PARTS, SMOKE, is_at, is_short, part_of, tried

ROOT = Path(__file__).parent.parent


def test_every_part_and_every_place_has_tests(request):
    items = request.session.items
    options = request.config.option
    files = len({item.path for item in items})
    if options.short or options.part or files < len(list(Path(__file__).parent.glob("test_*.py"))):
        pytest.skip("only a part of the suite is run")
    assert {part_of(item) for item in items} == {None, *PARTS}
    for part, places in PARTS.items():
        for place in places:
            assert any(is_at(item, place) for item in items), (part, place)
    for part, place in SMOKE.items():
        assert [part_of(item) for item in items if is_at(item, place) and is_short(item)] == [part], place


def collected(*options):
    return subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options],
                          cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip


def test_a_part_is_run_by_its_name():
    run = collected("tests/test_cpus.py", "--part", "cpus")
    names = [line for line in run.stdout.splitlines() if "::" in line]
    assert names
    assert all("::test_the_imitation_holds[" in name for name in names), run.stdout


def test_an_unknown_part_is_refused_with_the_list():
    run = collected("tests/test_cpus.py", "--part", "gpus")
    assert run.returncode == 4
    assert all(part in run.stderr for part in PARTS), run.stderr


def test_a_property_has_fewer_examples_in_the_short_run(monkeypatch):
    for short, count in (("1", 200), ("", 500)):
        monkeypatch.setenv("FPLAB_SHORT_TESTS", short)
        assert tried(500) == count
