"""The token space of semantic IDs: which vocabulary rows name which (level, code).

A SID is a tuple of L codes. Level l, code c is one token; the L x K tokens lie side by side behind the backbone's own
vocabulary, level by level. This module knows nothing of how codes are made or of what they mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Sid = tuple[int, ...]

MAX_LEVELS = 8
MAX_CODES = 8192


@dataclass(frozen=True, slots=True)
class SidSpace:
    """L levels of K codes whose tokens start at ``first_token_id``.

    Raises:
        ValueError: a size is outside 2..8 levels or 2..8192 codes, or the first token id is negative.
    """

    levels: int
    codes: int
    first_token_id: int

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise ValueError(f"levels must be 1..{MAX_LEVELS}, got {self.levels}")
        if not 2 <= self.codes <= MAX_CODES:
            raise ValueError(f"codes must be 2..{MAX_CODES}, got {self.codes}")
        if self.first_token_id < 0:
            raise ValueError(f"first_token_id must not be negative, got {self.first_token_id}")

    @property
    def num_tokens(self) -> int:
        """How many vocabulary rows the SIDs take: L x K."""
        return self.levels * self.codes

    @property
    def end_token_id(self) -> int:
        """The first token id behind the last SID token."""
        return self.first_token_id + self.num_tokens

    def level_start(self, level: int) -> int:
        """The token id of code 0 at ``level`` (0-based)."""
        return self.first_token_id + level * self.codes

    def token_ids(self, sid: Sequence[int]) -> list[int]:
        """The token ids of one SID, or of a prefix of one."""
        return [self.level_start(level) + code for level, code in enumerate(sid)]

    def rows(self, codes_NL: Tensor) -> Tensor:
        """Codes [..., L'] -> row numbers inside the SID block, int64, same shape."""
        offsets_L = torch.arange(codes_NL.shape[-1], device=codes_NL.device) * self.codes
        return codes_NL + offsets_L

    def level_and_code(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [...] -> (level, code), both int64; level -1 (and code 0) where a token is no SID token."""
        row = token_ids.long() - self.first_token_id
        is_sid = (row >= 0) & (row < self.num_tokens)
        level = torch.where(is_sid, torch.div(row, self.codes, rounding_mode="floor"), -1)
        return level, torch.where(is_sid, row % self.codes, 0)

    def token_strings(self) -> list[str]:
        """The tokens as text, in row order: ``<a_0>`` .. ``<a_K-1> <b_0>`` ..."""
        return [f"<{chr(97 + level)}_{code}>" for level in range(self.levels) for code in range(self.codes)]

    def check(self, sid: Sequence[int]) -> Sid:
        """``sid`` as a tuple.

        Raises:
            ValueError: it has not L codes, or a code is outside 0..K-1.
        """
        if len(sid) != self.levels or not all(0 <= code < self.codes for code in sid):
            raise ValueError(f"not a SID of {self.levels} codes below {self.codes}: {list(sid)[: MAX_LEVELS + 1]}")
        return tuple(int(code) for code in sid)
