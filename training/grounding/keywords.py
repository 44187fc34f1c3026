"""Keywords as rows: a token starts at the mean embedding of the words typical of its items (as TS-Rec's SA-Init).

Typical is what occurs under a code far more often than elsewhere: count times the log of the ratio of its share under
the code to its share overall. The words' own embeddings are taken, so nothing runs through the model.

Shapes: K codes, V text vocabulary, D model width.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

from torch import Tensor

from training.grounding.base import Clock, GroundingContext, GroundingResult, noisy_mean, start_only
from training.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Keywords:
    """How many tokens stand for a code, and how much of each text is read."""

    words: int = 8
    max_text_tokens: int = 64

    def ground(
        self, context: GroundingContext, progress: Progress = silent, state_file: Path | None = None
    ) -> GroundingResult:
        """See `Objective.ground`; there is nothing to resume."""
        clock = Clock()
        return start_only(self._rows(context), context, clock, samples=len(context.texts))

    def _rows(self, context: GroundingContext) -> Tensor:
        space, vocabulary_VD = context.space, context.vocabulary_VD.float()
        text_ids = context.backbone.tokenize(context.texts, self.max_text_tokens)
        overall = Counter(token for ids in text_ids for token in set(ids))
        # codes with the same words (or none) must not start equal
        rows = noisy_mean(vocabulary_VD, space.num_tokens, 0.01, context.seed)
        noise = rows - vocabulary_VD.mean(0)
        for level in range(space.levels):
            for code, ids_of_items in _by_code(context, level, text_ids).items():
                typical = typical_tokens(ids_of_items, overall, len(text_ids), self.words)
                if typical:
                    row = level * space.codes + code
                    rows[row] = vocabulary_VD[typical].mean(0) + noise[row]
        return rows


def typical_tokens(ids_of_items: Sequence[Sequence[int]], overall: Counter[int], items: int, words: int) -> list[int]:
    """The ``words`` tokens most typical of some items, given in how many of all ``items`` each token occurs."""
    inside = Counter(token for ids in ids_of_items for token in set(ids))
    score = {token: count * log(count / len(ids_of_items) * items / overall[token]) for token, count in inside.items()}
    ranked = sorted(score, key=lambda token: (-score[token], token))
    return [token for token in ranked[:words] if score[token] > 0]


def _by_code(
    context: GroundingContext, level: int, text_ids: Sequence[Sequence[int]]
) -> dict[int, list[Sequence[int]]]:
    found: dict[int, list[Sequence[int]]] = {}
    for code, ids in zip(context.codes_NL[:, level].tolist(), text_ids, strict=True):
        found.setdefault(code, []).append(ids)
    return found
