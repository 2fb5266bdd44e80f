"""The experiment on two GPUs through the layers."""

from typing import Any

from experiments.frame import EMULATED, Mutant, frame, record
from fplab.experiments import gpu_layers


def without_a_first_product(good: Any) -> Any:
    """Networks whose first product is zero on every GPU."""

    def network(layers: int, width: int, seed: int) -> Any:
        model, tokens = good(layers, width, seed)
        model.get_submodule(gpu_layers.FIRST).weight.data.zero_()
        return model, tokens

    return network


MUTANTS = (
    Mutant("no first product", ("first_product",), "network", without_a_first_product),
    Mutant("A100 sums cut to 13 bits", ("closer_than_exact", "mostly_the_same", "absorbed"), EMULATED,
           record("A100", "bf16", alignment_bits=13, kept_bits=13)),
    Mutant("effects by half", ("explained",), "fplab.nn.diagnose.explain.norm",
           lambda good: lambda x: 2 * good(x)),
)  # fmt: skip

globals().update(frame(gpu_layers, gpu_layers.E.quick, MUTANTS))
