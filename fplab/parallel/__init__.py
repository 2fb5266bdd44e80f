"""Parallel training: collectives in low precision, pipeline schedules, and real runs of several processes."""
