"""What a prompt shows of an item's title: its first tokens, as plain text whatever it spells.

Training and serving make them here, so that a posted item's title reads as a trained one's: a posted one was cleaned
and cut on its way in, a trained one is so here, and none is too long to be read between two requests. It knows no
prompts.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from service.model.item_text import MAX_TITLE_CHARS, clean_text

if TYPE_CHECKING:  # it takes a second, and prompts without titles need no tokenizer
    from transformers import PreTrainedTokenizerBase

CACHED_TITLES = 100_000


class TitleTokens:
    """The first ``max_tokens`` tokens of titles; those of the last 100,000 titles are kept.

    Args:
        tokenize: gives the token ids of a plain text.
        max_tokens: 0 shows nothing of any title.
    """

    def __init__(self, tokenize: Callable[[str], Sequence[int]], max_tokens: int) -> None:
        self.max_tokens = max_tokens
        # of nothing of this object: a cycle would outlive its lane, since the collector leaves alone what a start made
        self._of = partial(_first_tokens, tokenize, max_tokens)
        self.of = lru_cache(CACHED_TITLES)(self._of)

    def rows(self, titles: Sequence[str]) -> NDArray[np.int64]:
        """The same side by side, [N, T] of T = ``max_tokens``, -1 behind the end of a title."""
        token_NT = np.full((len(titles), self.max_tokens), -1, np.int64)
        for row, title in enumerate(titles):
            ids = self._of(title)
            token_NT[row, : len(ids)] = ids
        return token_NT


def _first_tokens(tokenize: Callable[[str], Sequence[int]], max_tokens: int, title: str) -> tuple[int, ...]:
    if not max_tokens:
        return ()
    # the space makes the first word a word within a text, which is how the model knows it best
    return tuple(tokenize(f" {clean_text(title, MAX_TITLE_CHARS)}")[:max_tokens])


def load_title_tokens(lm_folder: Path, max_tokens: int) -> TitleTokens:
    """With the tokenizer of a checkpoint's language model."""
    if not max_tokens:
        return TitleTokens(lambda _: (), 0)
    from transformers import AutoTokenizer

    # a folder that the manifest answers for, never a name on the hub
    tokenizer = AutoTokenizer.from_pretrained(lm_folder, local_files_only=True, trust_remote_code=False)  # nosec B615
    return TitleTokens(partial(text_token_ids, tokenizer), max_tokens)


def text_token_ids(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Token ids of plain text: nothing is added, and what looks like a special or SID token stays text."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
    return ids
