"""What an item says: its text, cleaned, in the one form that the text encoder and the grounding templates read.

Item text comes from strangers and is hostile until cleaned: NFKC, no control, bidi or zero-width characters, bounded
length. It does not tokenise; whoever does must do so with special tokens off.
"""

import re
import unicodedata
from collections.abc import Mapping

AttributeValue = str | float | int | bool | tuple[str, ...] | list[str]

MAX_TITLE_CHARS = 500
MAX_TEXT_CHARS = 4000

_SPACES = re.compile(r"\s+")


def clean_text(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """``text`` in NFKC, without control, format, surrogate and unassigned characters, spaces folded, cut to length."""
    folded = unicodedata.normalize("NFKC", text[: 4 * max_chars])
    kept = "".join(c if c.isspace() or unicodedata.category(c)[0] != "C" else " " for c in folded)
    return _SPACES.sub(" ", kept).strip()[:max_chars].rstrip()


def item_text(title: str, description: str = "", attributes: Mapping[str, AttributeValue] | None = None) -> str:
    """One line: title, attributes in key order, description; empty if the item says nothing at all."""
    parts = [clean_text(title, MAX_TITLE_CHARS)]
    parts += [_attribute_text(key, value) for key, value in sorted((attributes or {}).items())]
    parts.append(clean_text(description))
    return ". ".join(part for part in parts if part)[:MAX_TEXT_CHARS]


def _attribute_text(key: str, value: AttributeValue) -> str:
    if isinstance(value, str):
        shown = value
    elif isinstance(value, (tuple, list)):
        shown = ", ".join(value)
    elif isinstance(value, float) and value.is_integer():
        shown = str(int(value))
    else:
        shown = str(value)
    shown = clean_text(shown, MAX_TITLE_CHARS)
    return f"{clean_text(key, 100)}: {shown}" if shown else ""
