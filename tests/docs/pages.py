"""The documentation as the tests read it: pages, code blocks, tables, headings, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FRONT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_NOT_IN_A_SLUG = re.compile(r"[^\w\- ]")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``info`` is what stands behind the three backticks."""

    page: str
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def marks(self) -> list[str]:
        return self.info.split()[1:]

    @property
    def title(self) -> str | None:
        """The file a reader is told to write the block into."""
        named = (mark.partition("=")[2] for mark in self.marks if mark.startswith("title="))
        return next(named, None)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    """One file of the documentation."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        return [
            Block(
                self.name,
                self.text.count("\n", 0, found.start()) + 1,
                found[2].strip(),
                "\n".join(line.removeprefix(found[1]) for line in found[3].splitlines()) + "\n",
            )
            for found in _FENCE.finditer(self.text)
        ]

    @cached_property
    def prose(self) -> str:
        """The text without its code blocks."""
        return _FENCE.sub("", self.text)

    @property
    def headings(self) -> list[str]:
        return _HEADING.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        return {slug(heading) for heading in self.headings}

    @property
    def links(self) -> list[str]:
        return links(self.prose)

    @property
    def code(self) -> list[str]:
        """Everything between single backticks."""
        return _CODE.findall(self.prose)

    def section(self, heading: str) -> str:
        """What stands under a heading, up to the next one of the same or a higher level."""
        found = re.search(rf"^(#+) {re.escape(heading)}$", self.text, re.MULTILINE)
        assert found is not None, f"{self.name} has no section {heading!r}"
        rest = self.text[found.end() :]
        end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
        return rest[: end.start()] if end else rest

    def table(self, heading: str) -> list[list[str]]:
        """The cells of the first table under a heading, without its head."""
        lines = dropwhile(lambda line: line[:1] != "|", self.section(heading).splitlines())
        table = list(takewhile(lambda line: line[:1] == "|", lines))
        return [_cells(line) for line in table[2:]]

    def __str__(self) -> str:
        return self.name


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def slug(heading: str) -> str:
    """The anchor that a heading gets on the web."""
    return _NOT_IN_A_SLUG.sub("", heading.replace("`", "")).strip().lower().replace(" ", "-")


def links(text: str) -> list[str]:
    """Where the links of a text lead."""
    return _LINK.findall(text)


def page(name: str) -> Page:
    return Page(ROOT / name)


def pages() -> list[Page]:
    """Every page a user may read."""
    return [*map(page, FRONT), *(Page(path) for path in sorted(DOCS.rglob("*.md")))]


def blocks(language: str) -> list[Block]:
    return [block for each in pages() for block in each.blocks if block.language == language]


def plain(cell: str) -> str:
    """A cell without the backticks around it."""
    return cell.strip("`")
