"""Evidence from hardware: what a GPU must compute, what it computed, and the comparison of bits."""

from ..lazily import index

index(__name__)
