"""The cookbook: recipes in Markdown, whose Python is run by the tests, and what the lab rests on: papers and data."""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "cookbook"
PART = re.compile(r"^(```.*?^```)$|^\|[^\n]*\n\|---[^\n]*\n((?:\|[^\n]*\n)+)", re.S | re.M)
PLACE = re.compile(r"^@(\d+)$", re.M)
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.S)


@dataclass(frozen=True)
class Recipe:
    """A page. ``name``: its file's, without number and suffix. ``title``: its heading. ``about``: the first line."""

    name: str
    path: Path
    title: str
    about: str

    def source(self, language: str = "en") -> str:
        """The page in a language; where it has none in that, in English.

        A translation has the prose; its line ``@2`` stands for the second code, output or rows of a table in English.
        """
        text = self.path.read_text(encoding="utf-8")
        own = self.path.with_name(f"{self.path.stem}.{language}.md")
        if not own.exists():
            return text
        parts = ["", *(fence or rows for fence, rows in PART.findall(text))]
        return PLACE.sub(lambda place: parts[int(place[1])], own.read_text(encoding="utf-8"))

    def snippets(self, language: str = "en") -> list[tuple[str, str]]:
        """Each piece of Python and what it prints."""
        return BLOCK.findall(self.source(language))


def recipes() -> tuple[Recipe, ...]:
    """All of them, in the order of their files."""
    found = []
    for path in sorted(path for path in FOLDER.glob("*.md") if "." not in path.stem):
        title, _, about = path.read_text(encoding="utf-8").partition("\n\n")
        found.append(Recipe(path.stem.split("_", 1)[1], path, title.removeprefix("# "), about.partition("\n\n")[0]))
    return tuple(found)
