"""Why an item was recommended, from what is known without asking the model again.

The codes of a SID are the model's own words for an item; a past item that begins with the same codes is the plainest
reason there is. It knows the catalogue and nothing of engines.
"""

from collections.abc import Sequence

from service.catalog import CatalogItem
from service.model.semantic_ids import Sid
from service.recommendation import BlendShares, Explanation, SharedHistory

MAX_RELATIVES = 5


def explain(
    sid: Sid, history: Sequence[CatalogItem], level_scores: tuple[float, ...], blend: BlendShares | None = None
) -> Explanation:
    """The items of ``history`` (oldest first) that share the longest prefix with ``sid``, newest first."""
    shared = {item.item.item_id: (_shared_levels(item.sid, sid), item) for item in reversed(history)}
    longest = max((levels for levels, _ in shared.values()), default=0)
    relatives = [item for levels, item in shared.values() if levels == longest > 0][:MAX_RELATIVES]
    return Explanation(
        tuple(SharedHistory(item.item.item_id, item.item.title, longest) for item in relatives), level_scores, blend
    )


def _shared_levels(first: Sid, second: Sid) -> int:
    """How many codes both begin with."""
    levels = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        levels += 1
    return levels
