"""What kinds of events there are and what each is worth.

A kind with a weight above 0 enters the user's history, which the model reads and ``exclude_seen`` looks at; one with
weight 0 (an impression, a dislike) is feedback only. The weight itself travels with the event into the feedback log,
where training finds it. Kinds not listed are refused, because a misspelt one would be lost silently.
"""

import difflib
from collections.abc import Mapping, Sequence

from service.errors import InvalidRequestError
from service.recommendation import HistoryEntry

DEFAULT_WEIGHTS: Mapping[str, float] = {
    "view": 1.0,
    "click": 1.0,
    "play": 1.0,
    "like": 1.0,
    "rating": 1.0,
    "cart": 1.0,
    "purchase": 1.0,
    "impression": 0.0,
    "skip": 0.0,
    "dislike": 0.0,
}


class EventWeights:
    """Looks weights up."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    @property
    def table(self) -> Mapping[str, float]:
        """Weight by kind."""
        return self._weights

    def of(self, event: str, pointer: str) -> float:
        """The weight of a kind.

        Raises:
            InvalidRequestError: there is no such kind; it names the nearest, at ``pointer``.
        """
        if event in self._weights:
            return self._weights[event]
        near = difflib.get_close_matches(event[:64], self._weights, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(self._weights)}"
        raise InvalidRequestError(f"there is no event of this kind; {hint}", pointer=pointer)

    def inline_history(self, entries: Sequence[HistoryEntry]) -> tuple[str, ...]:
        """Item ids of a history given in a request, without kinds of weight 0; in time order if all have times.

        Raises:
            InvalidRequestError: an entry is of an unknown kind.
        """
        kept = [
            entry
            for place, entry in enumerate(entries)
            if entry.event is None or self.of(entry.event, f"/history/{place}/event") > 0
        ]
        if all(entry.timestamp is not None for entry in kept):
            kept.sort(key=lambda entry: entry.timestamp or 0.0)
        return tuple(entry.item_id for entry in kept)
