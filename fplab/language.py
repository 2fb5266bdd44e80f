"""The language in which the course speaks: English or Chinese, chosen once for the session.

>>> from fplab.words import say
>>> greeting = say("sum")
>>> lang("zh"), str(greeting)
('zh', '和')
>>> lang("en"), str(greeting)
('en', 'sum')
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator

from .errors import door, unknown
from .words import spoken

LANGUAGES = {"en": "English", "zh": "中文"}
_ALSO = {"english": "en", "中文": "zh", "chinese": "zh"}
_chosen: list[str] = []  # empty until a language is chosen or first asked for
_followers: list[Callable[[], None]] = []


def _short(language: object) -> str | None:
    """The short name of a language, also by a locale's, "zh_CN.UTF-8"; None for one that the lab does not speak."""
    name = re.split("[-_.]", language.strip().lower())[0] if isinstance(language, str) else ""
    name = _ALSO.get(name, name)
    return name if name in LANGUAGES else None


def _named(language: object) -> str:
    """The short name of a language, or the refusal."""
    if (name := _short(language)) is None:
        raise unknown("language", language, LANGUAGES, aliases=_ALSO)
    return name


@door
def lang(language: str | None = None) -> str:
    """Choose the language of the course ("en" or "zh"), or ask which one it is.

    Until one is chosen it is ``FPLAB_LANG``, or English. Returns the language's short name.

    >>> lang("English")
    'en'
    """
    if language is not None and [name := _named(language)] != _chosen:
        _chosen[:] = [name]
        for follow in _followers:
            follow()
    if not _chosen:
        _chosen.append(_short(os.environ.get("FPLAB_LANG")) or "en")  # one that is meant for others stops nothing
    return _chosen[0]


def prefer(language: str) -> None:
    """Choose a language that was chosen before, such as in another chapter, unless this session has one already."""
    if not _chosen and not os.environ.get("FPLAB_LANG"):
        lang(language)


def follow(change: Callable[[], None]) -> None:
    """Call ``change`` whenever another language is chosen: what is on the screen already is then drawn anew."""
    _followers.append(change)


@contextlib.contextmanager
def speaking(language: str) -> Iterator[None]:
    """Speak a language inside the block; nobody who follows the choice is told."""
    before = list(_chosen)
    _chosen[:] = [_named(language)]
    try:
        yield
    finally:
        _chosen[:] = before


def in_each(render: Callable[[], str]) -> str:
    """What ``render`` gives in every language, as HTML of which a page shows the chosen one.

    The classes are those of the course's prose. Without a page's style the second language is hidden.

    >>> from fplab.words import say
    >>> in_each(lambda: str(say("sum")))
    '<div class="fplab-en">sum</div><div class="fplab-zh" lang="zh" style="display:none">和</div>'
    """
    parts = []
    for language in LANGUAGES:
        with speaking(language):
            parts.append(marked(language, render()))
    return "".join(parts)


def marked(language: str, content: str, tag: str = "div") -> str:
    """HTML of one language, which a page shows where that language is chosen."""
    attributes = "" if language == "en" else f' lang="{language}" style="display:none"'
    return f'<{tag} class="fplab-{language}"{attributes}>{content}</{tag}>'


spoken(lang)
