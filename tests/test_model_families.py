"""Models of transformers, timm and torchvision train under emulate with FSDP2, in the bits of one process.

The libraries are those of the extra ``families``; without them the tests are skipped, and ``make nightly`` has them.
"""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from family_steps import FAMILIES
from ranks import on_ranks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What every family has whose library is there, by two ranks and by one process."""
    (found,) = on_ranks("family_steps:main", tmp_path_factory.mktemp("families"), (2,))
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_trains_under_fsdp2_in_the_bits_of_one_process(name: str, request: pytest.FixtureRequest) -> None:
    if find_spec(FAMILIES[name][1]) is None:
        pytest.skip(f"{FAMILIES[name][1]} is not installed: pip install 'fplab[families]'")
    got, want = request.getfixturevalue("trained")[name]
    assert torch.isfinite(got["losses"]).all()
    assert torch.equal(got["losses"], want["losses"])
    assert all(torch.equal(a, b) for a, b in zip(got["weights"], want["weights"], strict=True))
