"""Prompts that pair an item's text with its SID, in both directions, as padded batches of token ids.

Text is tokenised with special tokens off, so that a literal SID token in a title stays plain text. Padding stands
behind the answers, where a causal model cannot see it.

Shapes: B pairs, T tokens, L levels, M answer tokens of all pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.model.semantic_ids import SidSpace
from training.backbone import Backbone

TEXT_TO_SID = (
    ("Item: ", "\nThe code of this item is "),
    ("An item is described as: ", "\nIts code: "),
    ('Which code belongs to "', '"? Answer: '),
)
SID_TO_TEXT = (
    ("The item with code ", " is: "),
    ("Describe the item ", ": "),
    ("Code ", " stands for the item "),
)


@dataclass(frozen=True, slots=True)
class Template:
    """Token ids around what is asked; the answer follows ``after``."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Prompts with their answers: ``token_BT``, and which of its positions (bool) are answers to be predicted."""

    token_BT: Tensor
    answer_BT: Tensor

    @property
    def answers_M(self) -> Tensor:
        """The answer tokens, row by row."""
        return self.token_BT[self.answer_BT]

    def before_answers(self, hidden_BTD: Tensor) -> Tensor:
        """The hidden states that predict `answers_M`, [M, D]."""
        return hidden_BTD[:, :-1][self.answer_BT[:, 1:]]


@dataclass(frozen=True, slots=True)
class PairMaker:
    """All templates and item texts, tokenised once."""

    space: SidSpace
    text_to_sid: tuple[Template, ...]
    sid_to_text: tuple[Template, ...]
    text_ids: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, backbone: Backbone, space: SidSpace, texts: Sequence[str], max_text_tokens: int) -> "PairMaker":
        """Tokenise the templates and ``texts``, each text cut to ``max_text_tokens``."""
        ids = backbone.tokenize(texts, max_text_tokens)
        return cls(
            space,
            _templates(backbone, TEXT_TO_SID),
            _templates(backbone, SID_TO_TEXT),
            tuple(tuple(row) for row in ids),
        )

    def ask_sid(self, items: Sequence[int], codes_BL: Tensor, template: int) -> Pairs:
        """Text in the prompt, the SID as the answer."""
        chosen = self.text_to_sid[template % len(self.text_to_sid)]
        return _padded([(self._prompt(chosen, self.text_ids[i]), sid) for i, sid in self._with_sids(items, codes_BL)])

    def ask_text(self, items: Sequence[int], codes_BL: Tensor, template: int) -> Pairs:
        """The SID in the prompt, the text as the answer."""
        chosen = self.sid_to_text[template % len(self.sid_to_text)]
        return _padded([(self._prompt(chosen, sid), self.text_ids[i]) for i, sid in self._with_sids(items, codes_BL)])

    def used_tokens(self) -> Tensor:
        """The token ids that occur in item texts, ascending: the text loss needs no other rows of the head."""
        return torch.tensor(sorted({token for row in self.text_ids for token in row}))

    def _with_sids(self, items: Sequence[int], codes_BL: Tensor) -> list[tuple[int, tuple[int, ...]]]:
        sids = codes_BL.tolist()
        return [(item, tuple(self.space.token_ids(sid))) for item, sid in zip(items, sids, strict=True)]

    def _prompt(self, template: Template, asked: tuple[int, ...]) -> tuple[int, ...]:
        return (*template.before, *asked, *template.after)


def _templates(backbone: Backbone, parts: Sequence[tuple[str, str]]) -> tuple[Template, ...]:
    return tuple(Template(*(tuple(ids) for ids in backbone.tokenize(pair))) for pair in parts)


def _padded(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Pairs:
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    token_BT = torch.zeros(len(pairs), longest, dtype=torch.int64)
    answer_BT = torch.zeros(len(pairs), longest, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        token_BT[row, :end] = torch.tensor((*prompt, *answer))
        answer_BT[row, len(prompt) : end] = True
    return Pairs(token_BT, answer_BT)
