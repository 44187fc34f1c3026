"""What is asked of `POST /recommend` and what is answered, as plain values.

A recommendation's id begins with the version of the model that made it, so an event that names the id can be credited
to the model on any replica, without a lookup.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from service.filters import FilterRule
from service.model.semantic_ids import Sid

Source = Literal["model", "new_item", "fallback"]
RECOMMENDATION_ID = re.compile(r"(?P<model>[0-9A-Za-z._]{1,32})-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One past event of an inline history; ``timestamp`` in Unix seconds."""

    item_id: str
    timestamp: float | None = None
    event: str | None = None


@dataclass(frozen=True, slots=True)
class RecommendQuery:
    """What is asked; ``history`` given inline is used instead of the stored one."""

    user_id: str | None = None
    history: tuple[HistoryEntry, ...] | None = None
    num_results: int = 10
    exclude_seen: bool | None = None
    exclude_item_ids: tuple[str, ...] = ()
    filter: FilterRule | None = None
    explain: bool = False
    timeout_ms: int | None = None
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SharedHistory:
    """An item of the history that begins with the same codes as a recommended one."""

    item_id: str
    title: str
    shared_levels: int


@dataclass(frozen=True, slots=True)
class BlendShares:
    """The probability that each part of a blend gives an item (`service.model.blend`); 0 where a part does not know it.

    ``companion`` is the history's item that speaks most for it in ``company``.
    """

    model: float
    company: float
    text: float
    companion: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an item: its nearest relatives in the history, the log-probability of each code, what a blend's parts say."""

    history: tuple[SharedHistory, ...]
    level_scores: tuple[float, ...]
    blend: BlendShares | None = None


@dataclass(frozen=True, slots=True)
class RecommendedItem:
    """One place of an answer."""

    item_id: str
    score: float
    rank: int
    source: Source
    semantic_id: Sid
    title: str
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An answer; all its items exist in ``catalog_version``."""

    recommendation_id: str
    items: tuple[RecommendedItem, ...]
    degraded: bool
    degraded_reasons: tuple[str, ...]
    model_version: str
    catalog_version: int
    took_ms: float


def new_recommendation_id(model_version: str) -> str:
    """An id that nobody can guess and that says who answered."""
    return f"{model_version}-{uuid.uuid4().hex}"


def model_of(recommendation_id: str) -> str | None:
    """The version of the model that made the recommendation; None if the id is not one of ours."""
    found = RECOMMENDATION_ID.fullmatch(recommendation_id)
    return found["model"] if found else None
