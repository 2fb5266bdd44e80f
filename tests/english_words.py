"""English words that stand side by side in a Chinese text, and which of them stay there, with a reason."""

import re

STAYS = {  # a pattern, and why it is English in Chinese, too
    r"`[^`]*`|\"[^\"]*\"|'[^']*'|<[^>]*>|\$[^$]*\$|\{[^}]*\}": "code, quotations, markup, formulas, what is filled in",
    r"(fplab|pip|make|apt|dnf)( [a-z]+)+|pacman -S bubblewrap": "a command line",
    r"for x, _ in loader|x mod 2": "code and a formula without quotes",
    r"elementwise reductions products orders scalar mma wgmma": "the names that an option takes",
    r"softmax dropout|layer norm": "names of layers",
}
SENTENCE = re.compile(r"(?<![\w.(=/_-])[A-Za-z]?[a-z]+(?: [a-z]{2,})+(?![\w(=_-])")


def english_left(text: str) -> list[str]:
    """Two or more English words one after another, none of which may stay."""
    return SENTENCE.findall(re.sub("|".join(STAYS), " · ", text))
