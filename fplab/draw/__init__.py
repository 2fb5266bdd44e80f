"""The recurring drawings of the lab, as functions on matplotlib axes, in one light and one dark style."""

from typing import TYPE_CHECKING

from ..lazily import index

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

    from .axes import caption as caption
    from .axes import note as note
    from .axes import panels as panels
    from .axes import power_ticks as power_ticks
    from .histogram import binade_histogram as binade_histogram
    from .histogram import percent as percent
    from .style import current as current
    from .style import look as look
    from .style import look_of_format as look_of_format
    from .style import new_figure as new_figure
    from .tree import sum_tree as sum_tree

index(__name__)
