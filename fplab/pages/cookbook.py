"""The cookbook: recipes in Markdown, whose Python is run by the tests, and what the lab rests on: papers and data."""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "cookbook"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.S)


@dataclass(frozen=True)
class Recipe:
    """A page. ``name``: its file's, without number and suffix. ``title``: its heading. ``about``: the first line."""

    name: str
    path: Path
    title: str
    about: str

    @property
    def file(self) -> str:
        return f"{self.name}.html"

    @property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def snippets(self) -> list[tuple[str, str]]:
        """Each piece of Python and what it prints."""
        return BLOCK.findall(self.source)


def recipes() -> tuple[Recipe, ...]:
    """All of them, in the order of their files."""
    found = []
    for path in sorted(FOLDER.glob("*.md")):
        title, _, about = path.read_text(encoding="utf-8").partition("\n\n")
        found.append(Recipe(path.stem.split("_", 1)[1], path, title.removeprefix("# "), about.partition("\n\n")[0]))
    return tuple(found)
