"""The exhaustive proofs behind ``make prove``: every float32 pattern, every pair of FP16, every pair of every FP8."""
