"""Prompts that pair an item's text with its SID, in both directions, as token ids.

Text is tokenised with special tokens off and so that a literal SID token in a title stays plain text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from training.backbone import text_token_ids

TEXT_TO_SID = (("Item: ", "\nThe code of this item is "), ("An item is described as: ", "\nIts code: "))
SID_TO_TEXT = (("The item with code ", " is: "), ("Describe the item ", ": "))


@dataclass(frozen=True, slots=True)
class Template:
    """Token ids around the question; the answer follows ``after``."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Templates:
    """All templates of both directions and the items' texts, tokenised once."""

    text_to_sid: tuple[Template, ...]
    sid_to_text: tuple[Template, ...]
    text_ids: tuple[tuple[int, ...], ...]


def tokenise(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_text_tokens: int) -> Templates:
    """Tokenise templates and texts; a text is cut to ``max_text_tokens``."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(text_token_ids(tokenizer, text))

    def pair(parts: tuple[str, str]) -> Template:
        return Template(ids(parts[0]), ids(parts[1]))

    return Templates(
        tuple(pair(parts) for parts in TEXT_TO_SID),
        tuple(pair(parts) for parts in SID_TO_TEXT),
        tuple(ids(text)[:max_text_tokens] for text in texts),
    )
