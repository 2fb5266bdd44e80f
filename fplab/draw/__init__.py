"""The recurring drawings of the lab, as functions on matplotlib axes, in one light and one dark style."""

from ..lazily import index

index(__name__)
