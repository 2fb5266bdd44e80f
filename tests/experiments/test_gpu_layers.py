"""The experiment on two GPUs through the layers."""

import numpy as np

from experiments.frame import Mutant, changed, frame
from fplab.experiments import gpu_layers

MUTANTS = (
    Mutant("one GPU under both names", ("first_product",), change=changed("steps", lambda x: x[:, [0, 0]])),
    Mutant("parted elsewhere", ("first_product",), change=changed("first", lambda x: np.array(["head", *x[1:]]))),
    Mutant("errors under the name of differences", ("closer_than_exact",),
           change=lambda result: {"apart": result.wrong}),
    Mutant("numbers of another network", ("mostly_the_same",), change=changed("same", lambda x: x / 2)),
    Mutant("what is taken back under the name of what is alone", ("absorbed", "explained"),
           change=changed("alone", lambda x: x + 1e-9)),
)  # fmt: skip

globals().update(frame(gpu_layers, gpu_layers.QUICK, MUTANTS))
