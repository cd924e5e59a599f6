"""The code of the pages reaches the type checkers, with the numbers of its lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from mypy import api

from tests.docs import pages
from tests.docs.pages import ROOT, Page
from tools import snippets


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pages lie below it, as below the root of the project."""
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("```python title=shop.py\nguard = 1\n```\n")
    return tmp_path


def a_page(folder: Path, text: str) -> Page:
    path = folder / "docs" / "my-page.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return Page(path)


def texts(page: Page) -> list[str]:
    return [text for _, text in snippets.written(page)]


BUILDS_UP = """\
    # A page

    ```python run
    import semel
    from datetime import timedelta as span
    guard, unused = 1, 2
    ```

    ```python
    def later() -> None:
        local = guard
        print(semel, span(), local, nowhere)
    ```
    """


def test_a_block_has_the_names_of_those_above_it_and_its_own_line_numbers(folder: Path) -> None:
    page = a_page(folder, BUILDS_UP)
    (first, _), (second, text) = snippets.written(page)
    assert [str(first), str(second)] == ["docs/my_page/line_3.py", "docs/my_page/line_9.py"]
    assert text.splitlines()[0].split("; ") == [
        "from build.snippets.docs.my_page.line_3 import guard",
        "import semel",
        "from datetime import timedelta as span",
    ]
    assert text.splitlines()[9] == page.text.splitlines()[9] == "def later() -> None:"


def test_the_nearest_block_above_counts(folder: Path) -> None:
    page = a_page(
        folder, "```python\na = 1\n```\n```python\na = ''\n```\n```python\nprint(a)\n```\n"
    )
    assert texts(page)[2].startswith("from build.snippets.docs.my_page.line_4 import a\n")


def test_a_file_of_the_reader_is_imported_by_its_title_and_sees_no_other_block(
    folder: Path,
) -> None:
    page = a_page(
        folder,
        """\
        ```python title=moves.py
        from shop import guard
        move = 1
        ```
        ```python title=more.py
        from moves import move
        print(guard)
        ```
        """,
    )
    moves, more = texts(page)
    assert "from build.snippets.README.line_1 import guard" in moves
    assert "\nfrom build.snippets.docs.my_page.line_1 import move\nprint(guard)" in more


def test_what_is_shown_of_an_example_is_checked_there(folder: Path) -> None:
    shown = (ROOT / "examples/rides/app.py").read_text().split("\n\n\n")[2]
    assert texts(a_page(folder, f"```python\n{shown}\n```\n")) == []


def test_what_no_page_has_any_more_is_removed_and_what_stays_is_left_alone(folder: Path) -> None:
    page, out = a_page(folder, BUILDS_UP), folder / "out"
    assert snippets.write(out, [page]) == 2
    kept = out / "docs/my_page/line_3.py"
    before = kept.stat().st_mtime_ns
    changed = a_page(folder, BUILDS_UP.replace("def later", "\n    def later"))
    assert snippets.write(out, [changed]) == 2
    assert kept.stat().st_mtime_ns == before
    page = a_page(folder, "# empty\n")
    assert snippets.write(out, [page]) == 0
    assert list(out.rglob("*.py")) == []


def test_an_error_names_the_page_and_the_line(folder: Path) -> None:
    page = a_page(folder, "# A page\n\nText.\n\n```python\nright: int = 1\nwrong: int = ''\n```\n")
    out = folder / "out"
    snippets.write(out, [page])
    said, _, status = api.run(["--cache-dir", str(folder / "cache"), "--strict", str(out)])
    assert (status, "docs/my_page/line_5.py:7: error:" in said) == (1, True)


def test_every_block_of_the_pages_is_written_or_part_of_an_example() -> None:
    every = [block for each in pages.pages() for block in each.blocks if block.language == "python"]
    files = {path for each in pages.pages() for path, _ in snippets.written(each)}
    missing = [block for block in every if snippets.place(block) not in files]
    assert {block.page for block in missing} == {"docs/tutorial/rides.md"}
