"""From a history to the token ids the language model reads, the same in training, evaluation and serving.

A prompt is a fixed prefix (tokenised once, stored in the checkpoint) and the user's most recent items, oldest first:
each its SID, and behind it the first tokens of its title if the checkpoint was trained so. A history that is too long
loses whole items from its old end. It knows SIDs and token ids only, not items.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.model.semantic_ids import Sid, SidSpace


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """``prefix_ids`` and then at most ``max_items`` items of the history, each with ``title_tokens`` of its title."""

    space: SidSpace
    prefix_ids: tuple[int, ...]
    max_items: int
    title_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_items < 1 or not self.prefix_ids or self.title_tokens < 0:
            raise ValueError("a prompt needs a non-empty prefix and room for at least one item")

    @property
    def max_tokens(self) -> int:
        """The longest prompt, in tokens."""
        return len(self.prefix_ids) + self.max_items * (self.space.levels + self.title_tokens)

    def build(self, history: Sequence[Sid], titles: Sequence[Sequence[int]] = ()) -> list[int]:
        """Token ids of the prompt for ``history`` (oldest first).

        Args:
            history: SIDs.
            titles: as many token ids as there are of each item's title; those over ``title_tokens`` are not shown.

        Raises:
            ValueError: the template shows titles, and there is not one for each item.
        """
        recent = history[-self.max_items :]
        if not self.title_tokens:
            return [*self.prefix_ids, *(token for sid in recent for token in self.space.token_ids(sid))]
        if len(titles) != len(history):
            raise ValueError(f"{len(history)} items of a history came with {len(titles)} titles")
        prompt = list(self.prefix_ids)
        for sid, title in zip(recent, titles[-self.max_items :], strict=True):
            prompt += self.space.token_ids(sid)
            prompt += title[: self.title_tokens]
        return prompt
