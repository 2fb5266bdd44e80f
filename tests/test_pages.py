"""The course as static pages: offline, in both languages, with figures and pictures inside."""

import base64
import json
import pydoc
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path
from types import ModuleType

import browser
import pytest

from fplab import LabError, cli, pages
from fplab.language import marked
from fplab.pages import executed, inside, offline, reference, rendering, search, site
from fplab.widgets.shell import LIVE

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("nbconvert")

ROOT = Path(__file__).parent.parent
# What a browser fetches by itself, said a second time and bluntly: addresses of these elements, and imports of styles.
REMOTE = re.compile(
    r"<(?:script|link|img|iframe|source|object|embed|video|audio|use|image)\b[^>]*\b(?:xlink:)?(?:src|href|data|srcset)="
    r"[\"']?\s*(?:https?:)?//|@import|url\(\s*[\"']?\s*(?:https?:)?//",
    re.I,
)
EN, ZH = (marked(language, "\n\n{}\n\n") for language in ("en", "zh"))
FIRST = "\n".join(
    [EN.format("# 1. One\n\nIs this a *question*?\n\n![a dot](dot.svg) [on](02_two.ipynb#end) [paper](https://x.org)"),
     ZH.format("# 1. 一\n\n这是一个*问题*吗？")]
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
    """Two small notebooks and the pages of them."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "dot.svg").write_text(DOT)
    write_notebook(folder / "01_one.ipynb", *CODE)
    write_notebook(folder / "02_two.ipynb", first=FIRST.replace("1. One", "2. Two & more").replace("1. 一", "2. 二"))
    out = folder / "pages"
    return folder, out, pages.write(out=out, folder=folder)


@pytest.fixture(scope="module")
def page(book) -> str:
    return str((book[1] / "01_one.html").read_text(encoding="utf-8"))


def opened(chromium, address: str, locale: str = "en-US") -> str:
    """A page as a new reader's browser shows it, having run its scripts."""
    person = browser.Person(chromium, locale=locale)
    person.page.goto(address)
    shown = person.page.content()
    person.page.close()
    assert not person.complaints
    return shown


def outputs(page: str) -> list[str]:
    """What follows each code cell."""
    return [part.partition("</pre></div>")[2] for part in page.split('<div class="cell">')[1:]]


def test_no_parser_of_iris_is_made_for_notebooks():
    code = """import sys; from fplab.pages import executed; nbformat, _ = executed.needed()
nbformat.validate(nbformat.v4.new_notebook()); sys.exit("rfc3987_syntax.syntax_helpers" in sys.modules)"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pages_and_an_index_are_written(book):
    _, out, paths = book
    assert [path.name for path in paths] == ["01_one.html", "02_two.html", "index.html"]
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in paths)


def test_nothing_is_fetched(book):
    for path in book[2]:
        text = path.read_text(encoding="utf-8")
        assert not REMOTE.search(text), path.name
        assert not offline.fetched(text), path.name
        assert "require.js" not in text
        assert "MathJax" not in text
    assert not re.search(r"<script\b[^>]+>", book[2][0].read_text(encoding="utf-8"))  # ours alone, without attributes


def test_prose_is_there_twice_and_one_of_them_hidden(page):
    assert '<div class="fplab-en">' in page
    assert '<div class="fplab-zh" lang="zh" style="display:none">' in page
    assert ">1. One</h1>" in page
    assert ">1. 一</h1>" in page.replace("&#19968;", "一")
    assert "body:has(#language-zh:checked) .fplab-en { display: none; }" in page


def test_the_language_is_a_pair_of_native_inputs(page):
    choices = re.findall(r'<input type="radio" name="language" id="(language-\w+)"', page)
    assert choices == ["language-en", "language-zh"]
    for one in choices:
        assert f'<label for="{one}"' in page
        assert f"#{one}" in page or one == "language-en"
    assert "display: none" not in re.search(r"\.language input \{[^}]*\}", page)[0]  # it must take the focus


def test_images_are_inside_and_links_lead_to_pages(page):
    assert base64.b64encode(DOT.encode()).decode() in page
    assert 'href="02_two.html#end"' in page
    assert 'href="https://x.org"' in page
    assert 'class="anchor-link"' not in page.split("</style>")[1]


def test_a_chapter_without_a_page_is_named_without_a_link(book, tmp_path):
    pages.write(["01"], out=tmp_path, folder=book[0], run=False)
    page = (tmp_path / "01_one.html").read_text(encoding="utf-8")
    assert "02_two.html" not in page
    assert re.search(r"\bon\s+<a href=\"https://x.org\"", page)


def test_equal_outputs_are_there_once_and_others_in_both_languages(page):
    start, same, said, *_ = outputs(page)
    assert "<pre>" not in start
    assert same.count("same") == 1
    assert "noise" not in same
    assert '<div class="fplab-en"><pre>said in en' in said
    assert '<div class="fplab-zh" lang="zh" style="display:none"><pre>said in zh' in said


def test_widgets_are_their_pictures(page):
    for shown in outputs(page)[3:5]:
        assert "<svg" in shown
        assert LIVE.en in shown
        assert LIVE.zh in shown
        assert shown.count(LIVE.zh) == 1  # both languages are in one output, equal in both runs
    assert "widget-view" not in page
    assert "HBox(" not in page


def test_figures_are_svg_and_the_same_in_both_runs(page):
    figure = outputs(page)[5]
    assert figure.count('src="data:image/svg+xml;base64,') == 1
    data = re.search(r"base64,([^\"]+)", figure)[1]
    assert "<svg" in base64.b64decode(data).decode()
    assert "image/png" not in figure


def test_exercises_answer_and_leave_no_progress(page, monkeypatch, tmp_path):
    assert "not yet" in outputs(page)[6]
    assert "尚未通过" in outputs(page)[6]
    seen = {}

    def spy(self, env):
        seen.update(env)
        raise LabError("enough")

    monkeypatch.setattr("nbclient.NotebookClient.async_execute", spy)
    write_notebook(tmp_path / "a.ipynb", "1")
    with pytest.raises(LabError, match="enough"):
        executed._run(tmp_path / "a.ipynb", "zh")
    assert (seen["FPLAB_LANG"], seen["FPLAB_STATIC"]) == ("zh", "1")
    assert seen["FPLAB_PROGRESS_DIR"]
    assert not Path(seen["FPLAB_PROGRESS_DIR"]).exists()


def test_scripts_and_colours_of_a_terminal_are_left_out(page):
    bold, plain = outputs(page)[7:9]
    assert "<b>bold</b>" in bold
    assert "cdn.example/x.js" not in bold
    assert "<pre>plain &lt;text&gt;" in plain
    assert "\x1b" not in page


def test_chapters_link_to_their_neighbours_and_to_the_index(book, page):
    second = (book[1] / "02_two.html").read_text(encoding="utf-8")
    assert page.count('href="02_two.html" rel="next"') == 2
    assert 'rel="prev"' not in page
    assert second.count('href="01_one.html" rel="prev"') == 2
    index = (book[1] / "index.html").read_text(encoding="utf-8")
    assert "2. Two &amp; more" in index
    assert index.index("01_one.html") < index.index("02_two.html")
    assert "Is this a question?" in index
    assert "这是一个问题吗？" in index


def test_both_colour_schemes_are_there(page):
    assert page.count("@media (prefers-color-scheme: dark)") == 2  # the page's colours and the code's


def test_an_output_in_html_with_both_languages_stays_as_it_is():
    both = {"output_type": "display_data", "data": {"text/html": "<div>x</div>", "text/plain": "X"}}
    assert rendering.outputs({"en": [both], "zh": [both]}) == '<div class="output"><div>x</div></div>'
    assert rendering.outputs({"en": [], "zh": []}) == ""


def test_what_is_printed_piece_by_piece_is_one_text():
    said = [("stdout", "L = "), ("stderr", "compiling"), ("stdout", "8\n")]
    streams = [{"output_type": "stream", "name": name, "text": text} for name, text in said]
    picture = {"output_type": "display_data", "data": {"text/html": "<b>x</b>"}}
    assert rendering.one_language([*streams, picture, streams[0]]) == "<pre>L = 8\n</pre>\n<b>x</b>\n<pre>L = </pre>"


# --- what cannot be made ----------------------------------------------------------------------------------------
def test_a_notebook_that_fails_is_named_with_its_error(tmp_path):
    write_notebook(tmp_path / "bad.ipynb", "1 / 0", first="# Bad")
    with pytest.raises(LabError, match=r"bad\.ipynb fails \(\w\w\): ZeroDivisionError: division by zero"):
        pages.write(out=tmp_path / "out", folder=tmp_path)
    assert not list((tmp_path / "out").glob("*.html"))


def test_without_jupyter_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbconvert", None)
    with pytest.raises(LabError, match=r'^nbconvert is not installed, which this needs: pip install "fplab\[lab\]"'):
        pages.write(out=tmp_path, folder=tmp_path)


def test_an_unknown_name_suggests_the_nearest(book):
    with pytest.raises(LabError, match=r"unknown notebook '01_on'\. Allowed: 01_one, 02_two\. Did you mean '01_one'"):
        pages.write(["01_on"], book[1], book[0])


@pytest.mark.parametrize("address", ["missing.svg", "https://example.org/a.png", "//example.org/a.png", "page.html"])
def test_an_image_from_elsewhere_is_refused(address, tmp_path):
    with pytest.raises(LabError, match=f"the image '{re.escape(address)}' is no file"):
        offline.with_images(f'<img alt="" src="{address}">', tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [('<script src="https://cdn/x.js"></script>', ["https://cdn/x.js"]),
     ('<link rel="stylesheet" href="//cdn/x.css">', ["//cdn/x.css"]),
     ("<style>@import url(https://fonts/x)</style>", ["https://fonts/x"]),
     ("<style>a { background: url('https://a/b.png') }</style>", ["https://a/b.png"]),
     ('<p style="background:url(http://a/b)">', ["http://a/b"]),
     ('<img srcset="a.png 2x">', ["a.png 2x"]),
     ('<svg><use xlink:href="#here"/><image href="x.png"/></svg>', ["x.png"]),
     ('<a href="https://example.org">x</a><img src="data:image/png;base64,AA=="><p>url(http://text)</p>', [])],
)  # fmt: skip
def test_what_a_browser_would_fetch_is_found(text, found):
    assert offline.fetched(text) == found


def test_a_page_that_would_fetch_is_not_made():
    with pytest.raises(LabError, match=r"would fetch 'https://x/y\.js'; pages are read offline"):
        site.page(site.COURSE, '<script src="https://x/y.js"></script>')


# --- the course, and the command --------------------------------------------------------------------------------
def test_every_chapter_becomes_a_page_that_needs_no_network(tmp_path):
    """Without outputs: the notebooks are run by their own test."""
    course = pages.chapters(ROOT / "notebooks")
    paths = pages.write(out=tmp_path, folder=ROOT / "notebooks", run=False)
    assert len(paths) == len(course) + 1
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not REMOTE.search(text), path.name
        assert 'class="fplab-zh"' in text
    for chapter in course:
        assert re.search(r"[\u4e00-\u9fff]", chapter.title.zh), f"{chapter.name}: no Chinese title"
        assert chapter.title.en != chapter.name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The site with one chapter, the cookbook and the reference."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "dot.svg").write_text(DOT)
    write_notebook(folder / "01_one.ipynb")
    (folder / "site" / "folder.html").mkdir(parents=True)  # of somebody else's, and no page
    return {p.name: p for p in pages.write(out=folder / "site", folder=folder, run=False, whole=True)}


def test_the_site_is_one_and_needs_no_network(whole):
    texts = {name: path.read_text(encoding="utf-8") for name, path in whole.items()}
    for name, text in texts.items():
        assert not REMOTE.search(text) and not offline.fetched(text), name  # noqa: PT018
        assert f'action="{search.FILE}"' in text, name
        for page, anchor in re.findall(r'<a\b[^>]*\bhref="(?!https?:)([\w.]*)\.html(?:#([\w.]+))?"', text):
            absent = re.match(r"\d\d_", page) and page != "01_one"  # the chapters that a recipe names
            assert absent or f"{page}.html" in texts, (name, page)
            assert not anchor or absent or f'id="{anchor}"' in texts[f"{page}.html"], (name, page, anchor)
    listed = re.findall(r'<li><a href="([^"]+)"', texts["index.html"])
    assert sorted(listed) == sorted(set(whole) - {"index.html", search.FILE})


def test_the_reference_has_every_public_name(whole):
    for module in reference.modules():
        text = whole[f"{module}.html"].read_text(encoding="utf-8")
        public = getattr(pydoc.locate(module), "__all__", ())
        for name in public:
            value = getattr(pydoc.locate(module), name)
            assert f'id="{name}"' in text or isinstance(value, ModuleType), (module, name)
        assert "Error parsing" not in text


@pytest.mark.parametrize(("words", "leads_to"),
                         [("saturate E4M3", "fp8.html#FP8"),
                          ("emulate", "fplab.nn.html#emulate"),
                          ("问题", "01_one.html#1.-"), ("qwertz", None)])  # fmt: skip
def test_the_search_finds(whole, chromium, words, leads_to):
    page = opened(chromium, f"{whole[search.FILE].as_uri()}?q={urllib.parse.quote(words)}")
    found = page.partition('<ol id="results">')[2].partition("</ol>")[0]
    assert (f'href="{leads_to}' in found) == (leads_to is not None)
    assert ('<p id="nothing" hidden="">' in page) == (leads_to is not None)


def test_the_command_writes_pages(tmp_path, monkeypatch, capsys):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "dot.svg").write_text(DOT)
    write_notebook(tmp_path / "notebooks" / "01_one.ipynb")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["pages", "01"]) == 0
    assert capsys.readouterr().out.split() == [str(Path("pages", name)) for name in ("01_one.html", "index.html")]
    assert cli.main(["pages", "09"]) == 2
    assert "unknown notebook '09'" in capsys.readouterr().err


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
    ("own", "asked", "title"),
    [
        ("en-US", "", "1. One"),
        ("zh-CN", "", "1. 一"),
        ("zh-TW", "#en", "1. One"),
        ("de", "#zh", "1. 一"),
        ("de", "", "1. One"),
    ],
)
def test_a_page_is_first_in_the_language_of_its_address_or_of_the_browser(book, chromium, own, asked, title):
    shown = opened(chromium, f"{(book[1] / '01_one.html').as_uri()}{asked}", own)
    assert f'<html lang="{"zh" if title == "1. 一" else "en"}">' in shown
    assert f"<title>{title}</title>" in shown


def test_a_question_in_bold_is_told_with_what_leads_to_it(tmp_path):
    first = (
        EN.format("# One\n\nIt trains.\n\n**Why?**\n\nMore.")
        + "\n"
        + ZH.format("# 一\n\n能训练。\n\n**为什么？**\n\n还有。")
    )
    write_notebook(tmp_path / "01_one.ipynb", first=first)
    (one,) = pages.chapters(tmp_path)
    assert (one.question.en, one.question.zh) == ("It trains. Why?", "能训练。为什么？")


def test_titles_and_questions_come_from_the_first_cell(tmp_path):
    write_notebook(tmp_path / "plain.ipynb", first="No heading here.")
    (one,) = pages.chapters(tmp_path)
    assert (one.title.en, one.title.zh, one.question.en) == ("plain", "plain", "")
    assert json.loads((tmp_path / "plain.ipynb").read_text())["nbformat"] == 4
