"""The language in which the course speaks: English or Chinese, chosen once for the session.

>>> greeting = Text("sum", "和")
>>> lang("zh"), str(greeting)
('zh', '和')
>>> lang("en"), str(greeting)
('en', 'sum')
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .errors import LabError, unknown

LANGUAGES = {"en": "English", "zh": "中文"}
_ALSO = {"english": "en", "中文": "zh", "chinese": "zh", "zh-cn": "zh", "zh_cn": "zh"}
_chosen: list[str] = []  # empty until a language is chosen or first asked for


def _named(language: object) -> str:
    """The short name of a language."""
    name = language.strip().lower() if isinstance(language, str) else ""
    name = _ALSO.get(name, name)
    if name not in LANGUAGES:
        raise unknown("language", language, LANGUAGES, aliases=_ALSO)
    return name


def lang(language: str | None = None) -> str:
    """Choose the language of the course ("en" or "zh"), or ask which one it is.

    Until one is chosen it is ``FPLAB_LANG``, or English. Returns the language's short name.

    >>> lang("English")
    'en'
    """
    if language is not None:
        _chosen[:] = [_named(language)]
    if not _chosen:
        try:
            _chosen.append(_named(os.environ.get("FPLAB_LANG") or "en"))
        except LabError:
            _chosen.append("en")  # a variable meant for another program must not stop this one
    return _chosen[0]


@dataclass(frozen=True)
class Text:
    """A text in both languages; ``str`` gives it in the one that was chosen."""

    en: str
    zh: str

    def __str__(self) -> str:
        return self.zh if lang() == "zh" else self.en

    def fill(self, **values: Any) -> Text:
        """The same text with its ``{names}`` filled in; a Text among the values goes in each language.

        >>> str(Text("{n} bits", "{n} 位").fill(n=8))
        '8 bits'
        """
        english = {k: v.en if isinstance(v, Text) else v for k, v in values.items()}
        chinese = {k: v.zh if isinstance(v, Text) else v for k, v in values.items()}
        return Text(self.en.format(**english), self.zh.format(**chinese))
