"""Why two ways differ: what each layer does to the output, and the first step of a sum after which both are apart."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from ..errors import LabError
from ..language import speaking
from ..tensorcore.tracing import Trace
from ..words import say
from .lettering import language
from .scene import figure_of_scenes
from .stepper import step_scene, told
from .style import look, new_figure

MOST = 30  # layers drawn: of more, those with the largest parts


def draw(rows: Sequence[tuple[str, float, float]], whole: float, rest: tuple[float, float]) -> Figure:
    """Bars by layer: alone in way b, and taken back; below them the two rests and the whole."""
    kept = sorted(rows, key=lambda row: -max(map(abs, row[1:])))[:MOST]
    shown = [row for row in rows if row in kept]
    bars = [*shown, ("rest", *rest), ("whole", whole, whole)]
    figure = new_figure(8, 1.3 + 0.3 * len(bars))
    axes = figure.subplots()
    for i, label in enumerate(("alone in way b", "alone taken back to way a")):
        style = look(i)
        at = [k + 0.2 * (2 * i - 1) for k in range(len(bars))]
        axes.barh(at, [row[1 + i] for row in bars], 0.36, color=style.color, hatch="//" * i, label=label)
    axes.set_yticks(range(len(bars)), [row[0] for row in bars], fontsize=9)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.axhline(len(shown) - 0.5, color=look(6).color, linewidth=0.8)
    axes.axvline(0, color=look(6).color, linewidth=0.8)
    axes.set_xlabel("change of the output, along the whole difference")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def stepper(traces: tuple[tuple[Trace, ...], tuple[Trace, ...]]) -> Figure:
    """The steps of one element's sum in both ways, at the first after which both are apart.

    Raises LabError where the element is no sum of a matrix unit in both.
    """
    if not all(traces):
        raise LabError(
            "the first differing operation is no matrix product in both ways; there is no sum to step through."
        )
    scenes = []
    for name, chains, (chain, number) in zip("ab", traces, apart(*traces), strict=True):
        trace = chains[chain]
        step = trace.steps[number]
        with speaking(language()):
            slices = say(", sum {i} of {n}", i=chain + 1, n=len(chains)) if len(chains) > 1 else ""
            titled = say("{name}: {model}{slices}, step {number}: {told}", name=name, model=trace.model.name)
            title = str(titled.fill(slices=slices, number=number, told=told(step)))
            scenes.append((title, step_scene(step, trace)))
    return figure_of_scenes(scenes)


def apart(a: Sequence[Trace], b: Sequence[Trace]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of each way the chain and step that ends at the first k where both sums are known and differ; else the last."""
    ends = [_ends(a[0]), _ends(b[0])]
    for k in sorted(ends[0].keys() & ends[1].keys()):
        (i, x), (j, y) = ends[0][k], ends[1][k]
        if x != y and not (math.isnan(x) and math.isnan(y)):
            return (0, i), (0, j)
    return (len(a) - 1, len(a[-1].steps) - 1), (len(b) - 1, len(b[-1].steps) - 1)


def _ends(trace: Trace) -> dict[int, tuple[int, float]]:
    """After how many products of k which step ends, with its sum."""
    ends, done = {}, 0
    for number, step in enumerate(trace.steps):
        done = max([done, *(term.k + 1 for term in step.terms)])
        ends[done] = number, step.result
    return ends
