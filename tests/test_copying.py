"""The course in a reader's folder: copied, brought up to date, and never over what the reader changed."""

import json
import subprocess
from pathlib import Path

import pytest

from fplab import cli, copying, lab
from fplab.errors import LabError
from fplab.language import speaking

NAMES = sorted(path.name for path in copying.notebooks().glob("*.ipynb"))
SOURCE = Path(__file__).resolve().parent.parent


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course of two chapters, in place of the package's own."""
    folder = tmp_path / "package"
    folder.mkdir()
    for name in ("00_a.ipynb", "01_b.ipynb"):
        (folder / name).write_text(f"{name} first")
    monkeypatch.setattr(copying, "notebooks", lambda: folder)
    return folder


def texts(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("*.ipynb"))]


def test_every_chapter_is_copied_as_it_is(tmp_path: Path) -> None:
    assert copying.copy_course(tmp_path / "é 数" / "course") == []
    for name in NAMES:
        assert (tmp_path / "é 数" / "course" / name).read_bytes() == (copying.notebooks() / name).read_bytes()
    assert "00_start.ipynb" in NAMES


def test_a_newer_course_replaces_what_its_reader_left_alone_and_keeps_the_rest(course: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    assert copying.copy_course(mine) == []
    (mine / "00_a.ipynb").write_text("my notes")
    (mine / "my own.ipynb").write_text("mine alone")
    assert copying.copy_course(mine) == ["00_a.ipynb"]
    for name in ("00_a.ipynb", "01_b.ipynb"):
        (course / name).write_text(f"{name} second")
    assert copying.copy_course(mine) == ["00_a.ipynb"]
    assert texts(mine) == ["my notes", "01_b.ipynb second", "mine alone"]
    (mine / "00_a.ipynb").unlink()
    assert copying.copy_course(mine) == []
    assert texts(mine) == ["00_a.ipynb second", "01_b.ipynb second", "mine alone"]


@pytest.mark.parametrize("record", ["{", "[1]", "null", None])
def test_without_its_record_whatever_differs_is_the_readers(course: Path, tmp_path: Path, record: str | None) -> None:
    mine = tmp_path / "mine"
    copying.copy_course(mine)
    (course / "00_a.ipynb").write_text("newer")
    if record is None:
        (mine / copying.COPIED).unlink()
    else:
        (mine / copying.COPIED).write_text(record)
    assert copying.copy_course(mine) == ["00_a.ipynb"]
    assert set(json.loads((mine / copying.COPIED).read_text())) == {"01_b.ipynb"}


def test_the_courses_own_folder_is_left_as_it_is(course: Path) -> None:
    assert copying.copy_course(course) == []
    assert not (course / copying.COPIED).exists()


def test_a_folder_that_cannot_be_is_refused(course: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"^cannot write to '.*file': File exists\. Name another folder\.$"):
        copying.copy_course(tmp_path / "file")


def test_the_command_says_where_the_course_is_and_what_was_kept(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = []
    monkeypatch.setattr(lab, "serve", lambda folder, port, browser: served.append((folder, port, browser)) or 0)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["lab"]) == 0
    assert capsys.readouterr().out == f"The course is in {tmp_path / 'fplab-course'}/.\n"
    (tmp_path / "fplab-course" / "00_a.ipynb").write_text("my notes")
    monkeypatch.chdir(tmp_path / "fplab-course")  # which is a course already: none is made in it
    assert cli.main(["lab", "--no-browser", "--port", "9000"]) == 0
    said = f"The course is in {tmp_path / 'fplab-course'}/. Kept as you changed them: 00_a.ipynb. "
    said += "Delete or rename one to have the course's own."
    assert " ".join(capsys.readouterr().out.split()) == said
    assert served == [(Path("fplab-course"), 8888, True), (Path(), 9000, False)]


def test_a_clone_stays_clean() -> None:
    ignored = ["git", "-C", SOURCE, "check-ignore", "-q", f"{copying.FOLDER}/00_start.ipynb"]
    if subprocess.run(["git", "-C", SOURCE, "rev-parse"], capture_output=True, check=False).returncode:
        pytest.skip("this is no clone")
    assert subprocess.run(ignored, check=False).returncode == 0


def test_a_copy_has_its_prose_and_comments_in_the_chosen_language(tmp_path: Path) -> None:
    with speaking("zh"):
        copying.copy_course(tmp_path / "zh")
    copying.copy_course(tmp_path / "en")
    english, chinese = ((tmp_path / name / "12_parallel_training.ipynb").read_text("utf-8") for name in ("en", "zh"))
    assert "# who takes the rest?" in english
    assert "# 余下的归谁？" in chinese
    assert "# who takes the rest?" not in chinese
    prose = '<div class=\\"fplab-en\\">', '<div class=\\"fplab-zh\\" lang=\\"zh\\" style=\\"display:none\\">'
    assert all(english.count(div) > 20 and div not in chinese for div in prose)
    with speaking("zh"):
        assert copying.copy_course(tmp_path / "en") == [], "what nobody changed changes its language"
    assert (tmp_path / "en" / "12_parallel_training.ipynb").read_text("utf-8") == chinese
