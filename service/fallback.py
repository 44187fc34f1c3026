"""Popular items with a share of the newest: for users without a history, and for times without a model.

It needs nothing that can be down: popularity is the checkpoint's, new items are the catalogue's. A new item has no
popularity, so it takes the place, and the score, that a popular one would have had there; scores stay non-increasing.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from service.catalog import Catalog, CatalogItem

ALMOST_ONE = 1 - 1e-9  # ten times a tenth is a little less than one

Allowed = Callable[[CatalogItem], bool]


def popular_and_new(
    catalog: Catalog, allowed: Allowed, count: int, new_share: float
) -> list[tuple[CatalogItem, float]]:
    """Up to ``count`` distinct allowed items, best first, with log-probabilities.

    Every ``1 / new_share``-th place is a new item's, the newest first, while there are any.
    """
    popular = (place for place in catalog.popular() if allowed(place[0]))
    fresh = (item for item in catalog.newest() if allowed(item))
    return list(islice(_mixed(popular, fresh, new_share), count))


def _mixed(
    popular: Iterator[tuple[CatalogItem, float]], fresh: Iterator[CatalogItem], new_share: float
) -> Iterator[tuple[CatalogItem, float]]:
    given: set[str] = set()
    owed = 0.0
    for item, score in popular:
        owed += new_share
        if owed > ALMOST_ONE and (newcomer := next((each for each in fresh if each.item.item_id not in given), None)):
            owed += new_share - 1  # the popular item's own place comes behind
            given.add(newcomer.item.item_id)
            yield newcomer, score
        if item.item.item_id not in given:
            given.add(item.item.item_id)
            yield item, score
