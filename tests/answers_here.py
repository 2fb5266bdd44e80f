"""Answers without a process of their own, for tests of the verdict; test_exercises_process.py starts real ones."""

import json
import pickle
from typing import Any

from fplab.exercises import child, exercise, process, wire
from fplab.exercises.cases import boundary_cases, random_cases
from fplab.exercises.judge import judged
from fplab.exercises.report import Report


class ChildHere(process.Child):
    """What a child would say, by the same code."""

    def start(self) -> None:
        if self.process is None:
            self.process, self.answers = True, child.Answers(self.ask_box)

    def ask_box(self, number: int, terms: list[float]) -> Any:
        value, error = process.from_box({"box": number, "terms": wire.packed(terms)}, self.boxes)
        if error is not None:
            raise error
        return value

    def ask(self, do: str, *arguments: Any, boxes: tuple[Any, ...] = ()) -> dict[str, Any]:
        self.start()
        self.boxes = boxes
        arguments = pickle.loads(pickle.dumps(arguments))
        return json.loads(json.dumps(getattr(self.answers, do)(*arguments)))

    def close(self) -> None:
        self.process = None


def check(name: str, answer: Any, limit: float = 60.0) -> Report:
    """The report on an answer that nobody has to be kept from."""
    here = ChildHere(limit)
    here.start()
    here.answers.by_name[name] = answer
    return judged(exercise(name), process.There(exercise(name), here))


def cases_of(name: str) -> list[tuple[Any, ...]]:
    """The inputs on which a right answer is tried."""
    task = exercise(name).task
    return [*boundary_cases(task), *random_cases(name, task, task.random)]
