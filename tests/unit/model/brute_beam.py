"""A second, slow and obvious search to compare the beam with: Python sets of SIDs, one prefix at a time."""

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix


@dataclass
class ToyModel:
    """Each user's next-code distribution is drawn from a checksum of user and prefix, whoever else is in the batch.

    It notes the rows it was asked for, and asserts that users ascend and that every row continues its parent.
    """

    seeds: list[int]
    codes: int
    asked: list[tuple[int, Sid]] = field(default_factory=list)
    _rows: list[tuple[int, Sid]] = field(default_factory=list)

    def first(self) -> Tensor:
        self._rows = [(user, ()) for user in range(len(self.seeds))]
        return torch.stack([self.log_probs(user, ()) for user in range(len(self.seeds))])

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        rows = [(user, tuple(sid)) for user, sid in zip(user_R.tolist(), codes_Rn.tolist(), strict=True)]
        assert rows == sorted(set(rows))
        assert [self._rows[parent] for parent in parent_R.tolist()] == [(user, sid[:-1]) for user, sid in rows]
        self._rows, self.asked = rows, self.asked + rows
        return torch.stack([self.log_probs(user, sid) for user, sid in rows])

    def log_probs(self, user: int, prefix: Sid) -> Tensor:
        seed = zlib.crc32(repr((self.seeds[user], prefix)).encode())
        draw = np.random.default_rng(seed).normal(scale=2, size=self.codes)
        return torch.log_softmax(torch.from_numpy(draw).float(), 0)


@dataclass(frozen=True)
class Truth:
    """One catalogue version as sets: what lives, what was trained, what new nodes borrow."""

    live: frozenset[Sid]
    trained: frozenset[Sid]
    mixes: Mapping[Sid, SiblingMix]
    log_boost: float

    def level_score(self, logp: Tensor, prefix: Sid, code: int) -> float:
        child = (*prefix, code)
        if child in _prefixes(self.trained, len(child)):
            return float(logp[code])
        if (mix := self.mixes.get(child)) is not None:
            lent = sum(math.exp(w + float(logp[c])) for c, w in zip(mix.codes, mix.log_weights, strict=True))
            return math.log(lent) + self.log_boost
        return -math.log(len({sid[len(prefix)] for sid in self.live if sid[: len(prefix)] == prefix}))

    def beam(
        self, model: ToyModel, user: int, legal: frozenset[Sid], width: int, results: int
    ) -> list[tuple[float, Sid]]:
        """Best first; ``width`` prefixes are kept at inner levels, ``results`` SIDs at the last."""
        kept: list[tuple[float, Sid]] = [(0.0, ())]
        levels = len(next(iter(legal))) if legal else 0
        for level in range(levels):
            children = [
                (score + self.level_score(logp, prefix, code), (*prefix, code))
                for score, prefix in kept
                for logp in [model.log_probs(user, prefix)]
                for code in sorted({sid[level] for sid in legal if sid[:level] == prefix})
            ]
            kept = _best(children, results if level == levels - 1 else width)
        return kept if levels else []


def _best(scored: Iterable[tuple[float, Sid]], most: int) -> list[tuple[float, Sid]]:
    return sorted(scored, key=lambda pair: (-np.float32(pair[0]), pair[1]))[:most]


def _prefixes(sids: frozenset[Sid], length: int) -> set[Sid]:
    return {sid[:length] for sid in sids}
