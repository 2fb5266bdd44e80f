"""Compile the catalogues: ``python -m fplab.words``; with ``--missing``, list the messages that have no translation."""

import sys

from .catalogues import compile_all, languages, missing, problems

if __name__ == "__main__":
    if sys.argv[1:] == ["--missing"]:
        for language in languages():
            print(*(f"{language}: {place}: {message!r}" for place, message in missing(language)), sep="\n")
    elif sys.argv[1:]:
        sys.exit("python -m fplab.words [--missing]")
    else:
        print(*compile_all(), sep="\n")
        sys.exit("\n".join(p for language in languages() for p in problems(language)) or 0)
