"""From a history to the token ids the language model reads, the same in training, evaluation and serving.

A prompt is a fixed prefix (tokenised once, stored in the checkpoint) and the SIDs of the user's most recent items,
oldest first. A history that is too long loses whole items from its old end. It knows SIDs only, not items.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.model.semantic_ids import Sid, SidSpace


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """``prefix_ids`` and then at most ``max_items`` SIDs of the history."""

    space: SidSpace
    prefix_ids: tuple[int, ...]
    max_items: int

    def __post_init__(self) -> None:
        if self.max_items < 1 or not self.prefix_ids:
            raise ValueError("a prompt needs a non-empty prefix and room for at least one item")

    @property
    def max_tokens(self) -> int:
        """The longest prompt, in tokens."""
        return len(self.prefix_ids) + self.max_items * self.space.levels

    def build(self, history: Sequence[Sid]) -> list[int]:
        """Token ids of the prompt for ``history`` (oldest first)."""
        recent = history[-self.max_items :]
        return [*self.prefix_ids, *(token for sid in recent for token in self.space.token_ids(sid))]
