"""The experiment on two GPUs through the layers."""

from typing import Any

import pytest

from experiments.frame import EMULATED, Mutant, frame, record, silent
from fplab.experiments import gpu_layers


def without_a_first_product(good: Any) -> Any:
    """Networks whose first product is zero on every GPU."""

    def network(layers: int, width: int, seed: int) -> Any:
        model, tokens = good(layers, width, seed)
        model.get_submodule(gpu_layers.FIRST).weight.data.zero_()
        return model, tokens

    return network


def explanations(result: Any) -> dict[str, Any]:
    """A run without what is seen by depth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_layers, "by_depth", lambda model, tokens: ([], [], []))
        found = vars(gpu_layers.run(result.params, silent))
    return {name: found[name] for name in ("alone", "back", "wholes", "rests", "first", "sums", "steps")}


MUTANTS = (
    Mutant("no first product", ("first_product",), "network", without_a_first_product, part=explanations),
    Mutant("A100 sums cut to 13 bits", ("closer_than_exact", "mostly_the_same", "absorbed"), EMULATED,
           record("A100", "bf16", alignment_bits=13, kept_bits=13)),
    Mutant("effects by half", ("explained",), "fplab.nn.diagnose.explain.norm",
           lambda good: lambda x: 2 * good(x), part=explanations),
)  # fmt: skip

globals().update(frame(gpu_layers, gpu_layers.QUICK, MUTANTS))
