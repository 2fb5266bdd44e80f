"""The exhaustive proofs behind ``make prove``: every float32 pattern, every pair of FP16, every pair of every FP8."""

import os

os.environ["FPLAB_FEW"] = "0"  # what is proved is the kernels
