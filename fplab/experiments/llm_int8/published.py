"""What the paper reports, as published: LLM.int8() (arXiv 2208.07339v2), Table 1 and the text of section 4."""

from __future__ import annotations

SIZES = ("125M", "1.3B", "2.7B", "6.7B", "13B")
BASELINE = "32-bit float"

# C4 validation perplexity of transformer language models by parameters (Table 1).
TABLE1: dict[str, tuple[float, ...]] = {
    BASELINE: (25.65, 15.91, 14.43, 13.30, 12.45),
    "absmax": (87.76, 16.55, 15.11, 14.59, 19.08),
    "zeropoint": (56.66, 16.24, 14.76, 13.49, 13.94),
    "rowwise": (30.93, 17.08, 15.24, 14.13, 16.49),
    "vectorwise": (35.84, 16.82, 14.98, 14.13, 16.48),
    "zeropoint_vectorwise": (25.72, 15.94, 14.36, 13.38, 13.47),
    "rowwise_decomposed": (30.76, 16.19, 14.65, 13.25, 12.46),
    "llm_int8": (25.83, 15.93, 14.44, 13.24, 12.45),
    "zeropoint_llm_int8": (25.69, 15.92, 14.43, 13.24, 12.45),
}

LEAST_MAGNITUDE = 6.0  # what counts as an outlier feature: this magnitude ...
LEAST_LAYERS = 0.25  # ... in this share of the layers ...
LEAST_POSITIONS = 0.06  # ... and of the positions of a sequence
POSITIONS_67B = 0.75  # the share of positions with outliers in the model of 6.7 billion parameters
LARGER = (3.0, 20.0)  # times as large as the largest of the other features
