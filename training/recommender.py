"""Our recommender as evaluation sees it: histories in, ranked items out, by the full trie-constrained beam.

Seen items are taken out inside the beam, so that an answer is never short. Items that share a SID are ranked by
popularity. It is given a model and a catalogue, and knows nothing of splits or metrics. What all models that write SIDs
have in common is `SidRecommender`.

Shapes: N items, L levels, U users.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.beam import BeamModel, BeamQuery, Beams, beam_search
from service.model.grounded_lm import GroundedLM
from service.model.live_trie import LiveTrie
from service.model.prompt import PromptTemplate
from service.model.torch_beam import TorchBeamModel
from training.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Recommended:
    """Per user the ranked item numbers and their scores, and how many SIDs name no item (0 under the trie).

    ``beam`` is what the beam itself found, where this was made of it.
    """

    items: list[list[int]]
    scores: list[list[float]]
    illegal: int
    beam: "Recommended | None" = None

    @property
    def by_model(self) -> "Recommended":
        """What the model found, without anything mixed in."""
        return self.beam or self


class Recommender(Protocol):
    """Ours as it is measured: the beam, blended or not."""

    def recommend(
        self,
        histories: Sequence[Sequence[int]],
        *,
        exclude_seen: bool,
        progress: Progress = silent,
    ) -> Recommended:
        """Ranked items per history."""
        ...


class SidRecommender(ABC):
    """Ranks items for histories by a model that writes SIDs.

    Args:
        codes_NL: the items' SIDs.
        codes: K.
        popularity_N: ranks items inside a bucket.
        beam_width: SIDs kept per level, at least as many as items wanted.
        offered_N: bool [N], the items that may be recommended (default all); the others occur in histories only.
    """

    def __init__(
        self,
        codes_NL: NDArray[np.integer],
        codes: int,
        popularity_N: NDArray[np.int64],
        *,
        beam_width: int,
        offered_N: NDArray[np.bool_] | None = None,
    ) -> None:
        self._beam_width = beam_width
        self._sids = [tuple(row) for row in codes_NL.tolist()]
        offered_N = np.ones(len(codes_NL), np.bool_) if offered_N is None else offered_N
        self._trie = LiveTrie.build(codes_NL[offered_N], codes)
        self._bucket: dict[tuple[int, ...], list[int]] = defaultdict(list)
        order_N = np.argsort(-popularity_N, kind="stable")
        for item in order_N[offered_N[order_N]].tolist():
            self._bucket[self._sids[item]].append(item)

    @abstractmethod
    def beam_model(self, histories: Sequence[Sequence[int]]) -> BeamModel:
        """What scores codes after these histories, without gradients."""

    def recommend(
        self,
        histories: Sequence[Sequence[int]],
        *,
        exclude_seen: bool,
        batch_size: int = 32,
        progress: Progress = silent,
    ) -> Recommended:
        """Ranked items per history; users are batched by length."""
        ranked: list[list[int]] = [[] for _ in histories]
        scores: list[list[float]] = [[] for _ in histories]
        illegal = 0
        order = sorted(range(len(histories)), key=lambda user: len(histories[user]))
        for start in range(0, len(order), batch_size):
            users = order[start : start + batch_size]
            seen = [set(histories[user]) if exclude_seen else set[int]() for user in users]
            for user, without, beams in zip(users, seen, self._beams([histories[u] for u in users], seen), strict=True):
                sids = [tuple(sid) for sid in beams.codes_nL.tolist()]
                illegal += sum(sid not in self._bucket for sid in sids)
                scored = zip(sids, beams.score_n.tolist(), strict=True)
                found = [(i, s) for sid, s in scored for i in self._bucket.get(sid, []) if i not in without]
                ranked[user], scores[user] = [item for item, _ in found], [score for _, score in found]
            progress(start + len(users), len(order))
        return Recommended(ranked, scores, illegal)

    @torch.no_grad()
    def _beams(self, histories: Sequence[Sequence[int]], seen: Sequence[set[int]]) -> list[Beams]:
        queries = [BeamQuery(self._trie, self._beam_width, self._spent_sids(items)) for items in seen]
        return beam_search(self.beam_model(histories), queries)

    def _spent_sids(self, seen: Iterable[int]) -> Tensor:
        """SIDs all of whose items were seen, int64 [n, L]."""
        items = set(seen)
        sids = {self._sids[item] for item in items if set(self._bucket.get(self._sids[item], [])) <= items}
        return torch.tensor(sorted(sids), dtype=torch.int64).reshape(-1, self._trie.depth)


class BeamRecommender(SidRecommender):
    """Ranks items by the grounded LM.

    Args:
        model: the grounded LM.
        codes_NL: the items' SIDs.
        popularity_N: ranks items inside a bucket.
        max_items: how much history the prompt holds.
        beam_width: SIDs kept per level, at least as many as items wanted.
        offered_N: see `SidRecommender`.
        title_NT: token ids of the items' titles, -1 behind their ends, if prompts show them.
    """

    def __init__(
        self,
        model: GroundedLM,
        codes_NL: NDArray[np.integer],
        popularity_N: NDArray[np.int64],
        *,
        max_items: int,
        beam_width: int,
        offered_N: NDArray[np.bool_] | None = None,
        title_NT: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(codes_NL, model.space.codes, popularity_N, beam_width=beam_width, offered_N=offered_N)
        prefix = tuple(int(token) for token in model.get_buffer("prefix_ids"))
        shown = 0 if title_NT is None else title_NT.shape[1]
        rows = title_NT.tolist() if title_NT is not None and shown else []
        self._titles = [[token for token in row if token >= 0] for row in rows]
        self._model, self._prompt = model, PromptTemplate(model.space, prefix, max_items, shown)

    def beam_model(self, histories: Sequence[Sequence[int]]) -> BeamModel:
        """See `SidRecommender.beam_model`."""
        self._model.eval()
        return TorchBeamModel(self._model, [self._prompt_of(history) for history in histories])

    def _prompt_of(self, history: Sequence[int]) -> list[int]:
        titles = [self._titles[item] for item in history] if self._titles else ()
        return self._prompt.build([self._sids[item] for item in history], titles)
