"""Sections to a page. A section is a heading, a sentence, a table and pictures; the template decides how they look."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: headings and rows of text; the first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page; ``pictures`` are SVG markup, everything else is plain text."""

    title: str
    text: str = ""
    grid: Grid | None = None
    pictures: tuple[str, ...] = ()


def render(title: str, sections: Sequence[Section]) -> str:
    """The HTML page."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("training.report").joinpath("page.html.jinja").read_text("utf-8")
    return environment.from_string(source).render(title=title, sections=sections)
