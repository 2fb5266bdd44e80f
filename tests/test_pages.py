"""The site: chapters with their outputs, cookbook and reference, in both languages, offline, searched and linked."""

import json
import pydoc
import re
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import browser
import pytest

from fplab import LabError, cli, pages
from fplab.language import LANGUAGES, marked
from fplab.pages import cookbook, executed, inside, offline, reference, site
from fplab.pages.extension import Search
from fplab.widgets.shell import LIVE
from fplab.words import given

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("sphinx")

ROOT = Path(__file__).parent.parent
EN, ZH = (marked(language, "\n\n{}\n\n") for language in ("en", "zh"))
FIRST = "\n".join(
    [EN.format("# 1. One\n\nIs this a *question*?\n\n![a dot](dot.svg) [on](02_two.ipynb) [paper](https://x.org)\n\n"
               "Model parallelism of 2^24 parts.\n\n## More\n\ntext"),
     ZH.format("# 1. 一\n\n这是一个*问题*吗？\n\n模型并行与流水线气泡，8 位优化器。\n\n## 更多")]
)  # fmt: skip
DOT = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 2 2"><circle r="1"/></svg>'
CODE = (
    "import fplab\n\nfplab.course.start()", "import os, sys\nprint('same')\nprint('noise', file=sys.stderr)",
    "print('said in', fplab.lang())", "fplab.widgets.gradients.widget(log2_scale=4)", "fplab.widgets.bits.widget()",
    "from fplab.draw.style import new_figure\nfigure = new_figure(2, 1)\nfigure.subplots().plot([1, 2])\nfigure",
    "fplab.exercises.check('rne', lambda x, n: x >> n)",
    "from IPython.display import HTML\nHTML('<b>bold</b><script src=\"https://cdn.example/x.js\"></script>')",
    "print('\\x1b[31mplain\\x1b[0m <text>')",
)  # fmt: skip


def write_notebook(path: Path, *cells: str, first: str = FIRST) -> None:
    made = [nbformat.v4.new_markdown_cell(first), *map(nbformat.v4.new_code_cell, cells)]
    nbformat.write(nbformat.v4.new_notebook(cells=made), path)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A folder of two small notebooks, the site of them, what was told, and what went wrong."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "dot.svg").write_text(DOT)
    (folder / "CHANGELOG.md").write_text("# Changes\n\n## 0.1\n\nA change.\n")
    write_notebook(folder / "01_one.ipynb", *CODE)
    write_notebook(folder / "02_two.ipynb", first=FIRST.replace("1. One", "2. Two & more").replace("1. 一", "2. 二"))
    told: list[str] = []
    problems = pages.write(out=folder / "site", folder=folder, tick=told.append, changes=folder / "CHANGELOG.md",
                           measured=ROOT / "figures/benchmarks.csv")  # fmt: skip
    return folder, told, [str(problem) for problem in problems]


@pytest.fixture(scope="module")
def page(book):
    """The text of a page, by its name."""
    return lambda name: (book[0] / "site" / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("damage", [Path.mkdir, *(lambda path, text=text: path.write_text(text) for text in
                                                  ("", "{", "[]", "{}", '{"nbformat": 4, "cells": 1}'))])  # fmt: skip
def test_a_damaged_run_is_none_that_was_kept(damage, tmp_path):
    write_notebook(tmp_path / "a.ipynb")
    file = executed._place(tmp_path / "a.ipynb", "en", tmp_path)
    write_notebook(file)
    assert executed.kept(tmp_path / "a.ipynb", "en", tmp_path).kept
    file.unlink()
    damage(file)
    assert executed.kept(tmp_path / "a.ipynb", "en", tmp_path) is None


def test_no_parser_of_iris_is_made_for_notebooks():
    code = """import sys; from fplab.pages import executed; nbformat, _ = executed.needed()
nbformat.validate(nbformat.v4.new_notebook()); sys.exit("rfc3987_syntax.syntax_helpers" in sys.modules)"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_site_in_both_languages_is_made_and_says_how_long_it_took(book):
    folder, told, problems = book
    assert problems == []
    assert [re.sub(r"\d+", "N", line) for line in told] == [
        "N_one: N s", "N_two: N s", "N pages in English: N s", "N pages in 中文: N s"
    ]  # fmt: skip
    both = [sorted(p.relative_to(folder / "site" / name) for p in (folder / "site" / name).rglob("*.html"))
            for name in LANGUAGES]  # fmt: skip
    assert both[0] == both[1]
    assert len(both[0]) > 50


class Links(HTMLParser):
    """The addresses that a page leads to, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given["id"]} if "id" in given else set()
        self.links += [given[name] for name in ("href", "src") if given.get(name)]


def test_every_link_leads_somewhere_and_nothing_is_fetched(book):
    found = {path: Links(path.read_text(encoding="utf-8")) for path in (book[0] / "site").rglob("*.html")}
    for path, one in found.items():
        assert offline.fetched(path.read_text(encoding="utf-8")) == [], path.name
        for link in one.links:
            address, _, anchor = urllib.parse.unquote(link.partition("?")[0]).partition("#")
            if re.match(r"\w+:", address):
                continue
            there = (path.parent / address).resolve() if address else path
            assert there.exists(), (path.name, link)
            if anchor and there in found:
                assert anchor in found[there].ids or not anchor, (path.name, link)
    for style in (book[0] / "site").rglob("*.css"):
        assert not [one for one in offline.in_css(style.read_text(encoding="utf-8")) if offline.REMOTE.match(one)]


def test_a_chapter_is_in_the_language_of_its_page(page):
    english, chinese = (page(f"{name}/course/01_one") for name in LANGUAGES)
    assert '<html class="no-js" lang="en"' in english
    assert 'lang="zh-CN"' in chinese
    assert "1. One" in english
    assert "1. 一" not in english
    assert "1. 一" in chinese
    assert "said in en" in english
    assert "said in zh" in chinese
    for text in (english, chinese):
        assert text.count("noise") == 1  # in the code
        assert text.count("cdn.example") == 1
        assert "<b>bold</b>" in text
        assert "plain &lt;text&gt;" in text
        assert "\x1b" not in text
        assert 'href="02_two.html"' in text
    assert 'href="../../zh/course/01_one.html"' in english
    assert 'href="#more"' in english  # the contents of the page


def test_widgets_move_and_figures_are_svg(page, book):
    text = page("en/course/01_one")
    assert text.count('data-live="') == 2
    assert LIVE.en in text
    assert "widget-view" not in text
    assert len(re.findall(r"<script>\n\{", text)) == 1
    assert len(re.findall(r'<img[^>]* src="\.\./_images/[^"]+\.svg"', text)) == 2  # the dot, and what a cell drew


def test_exercises_answer_and_leave_no_progress(page, monkeypatch, tmp_path):
    assert "not yet" in page("en/course/01_one")
    assert "尚未通过" in page("zh/course/01_one")
    seen = {}

    def spy(self, env):
        seen.update(env)
        raise LabError("enough")

    monkeypatch.setattr("nbclient.NotebookClient.async_execute", spy)
    write_notebook(tmp_path / "a.ipynb", "1")
    with pytest.raises(LabError, match="enough"):
        executed._executed(tmp_path / "a.ipynb", "zh", 9)
    assert (seen["FPLAB_LANG"], seen["FPLAB_STATIC"]) == ("zh", "1")
    assert seen["FPLAB_PROGRESS_DIR"]
    assert not Path(seen["FPLAB_PROGRESS_DIR"]).exists()


def test_the_start_shows_what_the_laboratory_is(page):
    english, chinese = (page(f"{name}/index") for name in LANGUAGES)
    assert "the sum is <strong>256</strong>, not 409.6" in english
    assert english.count('class="fplab-door"') == 3
    assert english.count('data-widget="bits"') == 1
    assert "学习" in chinese
    assert english.index("01_one") < english.index("02_two")
    assert "Is this a question?" in english
    assert "这是一个问题吗？" in chinese
    assert "A change." in page("en/changes")
    for language, title in (("en", "Benchmarks"), ("zh", "基准测试")):
        assert title in page(f"{language}/index")
        assert re.search(r"<td>fp16</td><td>[\d.]+</td>", page(f"{language}/benchmarks"))


def test_the_reference_has_every_public_name_with_its_parameters(page):
    for module in reference.modules():
        text = page(f"en/reference/{module}")
        for name in getattr(pydoc.locate(module), "__all__", ()):
            value = getattr(pydoc.locate(module), name)
            elsewhere = (module, name) in reference.TWICE or isinstance(value, ModuleType)
            assert elsewhere or f'id="{module}.{name}"' in text, (module, name)
        assert re.search("[\u4e00-\u9fff]", page(f"zh/reference/{module}").partition("<article")[2][:1500]), module
    text = page("en/reference/fplab.sums")
    assert "<p>parameter</p>" in text
    assert set(reference.overviews()) == set(reference.modules())


@pytest.mark.parametrize(
    ("language", "words", "leads_to"),
    [
        ("en", "saturate E4M3", "cookbook/fp8.html"),
        ("en", "2^24", "course/01_one.html"),
        ("zh", "模型并行", "course/01_one.html"),
        ("zh", "模型 并行", "course/01_one.html"),
        ("zh", "8 位优化器", "course/01_one.html"),
        ("zh", "8位优化器", "course/01_one.html"),
        ("zh", "流水线气泡", "course/01_one.html"),
        ("zh", "流水线 气泡", "glossary.html"),
        ("zh", "动态树量化", "glossary.html"),
        ("zh", "动态树 量化", "glossary.html"),
        ("zh", "舍入到最近偶数", "glossary.html"),
        ("zh", "四舍六入五成双", "glossary.html"),
        ("en", "qwertz", None),
    ],
)
def test_the_search_finds(book, chromium, language, words, leads_to):
    person = browser.Person(chromium)
    person.page.goto(f"{(book[0] / 'site' / language / 'search.html').as_uri()}?q={urllib.parse.quote(words)}")
    person.page.wait_for_function("document.querySelector('.search-summary')?.textContent.match(/\\d|not|没有|未/)")
    found = person.page.locator("ul.search li a").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    assert any(leads_to in link for link in found) if leads_to else not found
    person.page.close()


@pytest.mark.parametrize("text", ["8 位优化器", "8位优化器", "2^24 bits of e4m3", "LLM.int8() x", "模 型"])
def test_the_index_and_the_query_have_the_same_words(chromium, text):
    page = chromium.new_page()
    assert page.evaluate(f"(text) => {{ {Search.js_splitter_code} return splitQuery(text); }}", text) == (
        Search({}).split(text)
    )
    page.close()


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_a_browser_shows_it(book, chromium, width):
    for name in ("en/index", "zh/course/01_one", "en/reference/fplab.tensorcore", "zh/topics"):
        person = browser.Person(chromium, width)
        person.page.goto((book[0] / "site" / f"{name}.html").as_uri())
        assert person.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert person.complaints == []
        person.page.close()


@pytest.mark.parametrize(("own", "chosen", "shown"), [("en-US", "", "en"), ("zh-TW", "", "zh"), ("de", "zh", "zh")])
def test_the_site_opens_in_the_language_of_the_reader(book, chromium, own, chosen, shown):
    person = browser.Person(chromium, locale=own)
    if chosen:
        person.page.add_init_script(f"localStorage.setItem('fplab-language', '{chosen}')")
    person.page.goto((book[0] / "site/index.html").as_uri())
    person.page.wait_for_url(f"**/{shown}/index.html")
    person.page.close()


def test_a_reader_changes_the_language_and_it_stays(book, chromium):
    person = browser.Person(chromium)
    page, site = person.page, book[0] / "site"
    page.goto((site / "en/course/01_one.html").as_uri())
    assert "0x2e66" in page.locator(".fplab-picture:visible").last.inner_text()
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/zh/course/01_one.html")
    assert page.locator("h1:visible").inner_text().startswith("1. 一")
    assert "正规数" in page.locator(".fplab-picture:visible").last.inner_text()
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/zh/index.html")
    assert person.complaints == []
    page.close()


# --- again, and what fails ---------------------------------------------------------------------------------------
def test_what_has_not_changed_is_not_run_again(book, monkeypatch):
    folder, told = book[0], []
    monkeypatch.setattr(executed, "_executed", lambda *given: pytest.fail("it ran"))
    assert pages.write(out=folder / "site", folder=folder, tick=told.append) == []
    assert told[:2] == ["01_one: as before", "02_two: as before"]


def test_a_cell_that_fails_is_named_and_ends_nothing(tmp_path):
    write_notebook(tmp_path / "bad.ipynb", "1 / 0", "print('after')", first="# Bad")
    told: list[str] = []
    problems = pages.write(out=tmp_path / "out", folder=tmp_path, tick=told.append)
    assert [str(one) for one in problems] == [
        f"bad.ipynb fails ({language}): ZeroDivisionError: division by zero" for language in LANGUAGES
    ]
    text = (tmp_path / "out/en/course/bad.html").read_text(encoding="utf-8")
    assert text.count("ZeroDivisionError") == text.count("division by zero") == 1
    assert "after" in text
    assert not list((tmp_path / "out/.kept/runs").glob("bad.*"))  # what failed is run again


def test_a_cell_that_takes_too_long_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "build", lambda *given: [])
    write_notebook(tmp_path / "slow.ipynb", "import time\ntime.sleep(60)", first="# Slow")
    problems = pages.write(out=tmp_path / "out", folder=tmp_path, limit=1)
    assert [str(one) for one in problems] == [
        f"slow.ipynb fails ({language}): a cell takes more than 1 s; --limit allows more" for language in LANGUAGES
    ]


def test_without_sphinx_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sphinx", None)
    with pytest.raises(LabError, match=r'^sphinx is not installed, which this needs: pip install "fplab\[lab\]"'):
        pages.write(out=tmp_path, folder=tmp_path)


def test_an_unknown_name_suggests_the_nearest(book):
    with pytest.raises(LabError, match=r"unknown notebook '01_on'\. Allowed: 01_one, 02_two\. Did you mean '01_one'"):
        pages.write(["01_on"], book[0] / "site", book[0])


@pytest.mark.parametrize(
    ("text", "found"),
    [('<script src="https://cdn/x.js"></script>', ["https://cdn/x.js"]),
     ('<link rel="stylesheet" href="//cdn/x.css">', ["//cdn/x.css"]),
     ('<link rel="next" href="https://x/y">', []),
     ("<style>@import url(https://fonts/x)</style>", ["https://fonts/x"]),
     ("<style>a { background: url('https://a/b.png') }</style>", ["https://a/b.png"]),
     ('<p style="background:url(http://a/b)">', ["http://a/b"]),
     ('<img srcset="//a/b.png 2x">', ["//a/b.png 2x"]),
     ('<a href="https://example.org">x</a><img src="a.png"><p>url(http://text)</p>', [])],
)  # fmt: skip
def test_what_a_browser_would_fetch_is_found(text, found):
    assert offline.fetched(text) == found


# --- the course, and the command ----------------------------------------------------------------------------------
def test_every_chapter_has_a_title_in_both_languages():
    for chapter in pages.chapters(ROOT / "notebooks"):
        assert re.search(r"[\u4e00-\u9fff]", chapter.title.zh), f"{chapter.name}: no Chinese title"
        assert chapter.title.en != chapter.name


def test_the_command_writes_a_site_and_ends_with_1_where_something_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(site, "build", lambda *given: [])
    (tmp_path / "notebooks").mkdir()
    write_notebook(tmp_path / "notebooks" / "01_one.ipynb", "x = 1", first="# One")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["pages", "01"]) == 0
    assert capsys.readouterr().out == "pages/index.html\n"
    monkeypatch.setattr(site, "build", lambda *given: [given_problem])
    assert cli.main(["pages", "01"]) == 1
    assert "a problem" in capsys.readouterr().err
    assert cli.main(["pages", "09"]) == 2
    assert "unknown notebook '09'" in capsys.readouterr().err


given_problem = given("a problem", zh="问题")


def test_make_knows_pages_and_git_does_not():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^pages:.*\n\t@\$\(BIN\)/python -m fplab pages$", makefile, re.M)
    assert " pages " in re.search(r"^clean:.*\n\t(.*)$", makefile, re.M)[1]
    assert "/pages/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()


def test_the_first_cell_of_a_page_prepares_figures():
    registered = {}

    class Formatter:
        def for_type_by_name(self, module, name, function):
            registered[module, name] = function

    class Shell:
        class display_formatter:  # noqa: N801
            formatters = {"image/svg+xml": Formatter()}  # noqa: RUF012

    inside.prepare(Shell)
    assert registered == {("matplotlib.figure", "Figure"): inside.svg}
    compile(inside.FIRST, "cell", "exec")


@pytest.mark.parametrize(
    ("first", "title", "question"),
    [
        (EN.format("# One\n\nIt trains.\n\n**Why?**\n\nMore.")
         + ZH.format("# 一\n\n能训练。\n\n**为什么？**\n\n还有。"),
         ("One", "一"), ("It trains. Why?", "能训练。为什么？")),
        ("No heading here.", ("plain", "plain"), ("", "")),
    ],
)  # fmt: skip
def test_titles_and_questions_come_from_the_first_cell(tmp_path, first, title, question):
    write_notebook(tmp_path / "plain.ipynb", first=first)
    (one,) = pages.chapters(tmp_path)
    assert ((one.title.en, one.title.zh), (one.question.en, one.question.zh)) == (title, question)
    assert json.loads((tmp_path / "plain.ipynb").read_text())["nbformat"] == 4


def test_what_is_printed_piece_by_piece_is_one_text():
    said = [("stdout", "L = "), ("stderr", "compiling"), ("stdout", "8\n")]
    streams = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in said]
    picture = nbformat.v4.new_output("display_data", data={"text/html": "<b>x</b>", "text/plain": "x"})
    found = executed.shown([*streams, picture, streams[0]])
    assert [one.get("text") or one.data for one in found] == ["L = 8\n", {"text/html": "<b>x</b>"}, "L = "]


def test_every_recipe_and_its_python_is_there_in_both_languages():
    for recipe in cookbook.recipes():
        assert recipe.snippets("zh") == recipe.snippets("en"), recipe.name
