"""An exercise, which checks an answer in a process of its own."""

from dataclasses import replace
from typing import Any

from ..errors import LabError
from . import attempts
from .judge import judged
from .process import LIMIT, Child, Sent
from .report import Report
from .tasks import Question


class Exercise(Question):
    """One exercise, in two languages.

    >>> from fplab.exercises import exercise
    >>> exercise("largest_e4m3").check(448, remember=False).passed
    True
    """

    def check(self, answer: Any, *, limit: float | None = None, remember: bool = True) -> Report:
        """Check an answer: a function, or the value asked for. Prints as text, in a notebook as HTML.

        ``limit``: seconds that one call may take. ``remember``: keep the outcome in the progress file.

        The answer runs in another process, to which it is sent with the variables that it uses, and which is ended
        when a call takes too long. It has the rights of this user, as all code of a notebook does. To check the answers
        of others, use ``fplab exercise check --isolated``.
        """
        seconds = LIMIT if limit is None else limit
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3600:
            raise LabError(f"limit={limit!r} is no number of seconds; allowed: above 0, to 3600.")
        with Child(seconds) as child:
            report = judged(self, Sent(self, child, answer))
        return noted(report) if remember else report


def noted(report: Report) -> Report:
    """The report, kept as one attempt, with a note where that cannot be."""
    return replace(report, note=attempts.remember(report.exercise.name, report.passed))
