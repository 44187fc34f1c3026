"""Collisions removed at equal length: the last code is reassigned inside each prefix group at minimal total cost.

Items that share all but the last code compete for the K last codes; a minimum-cost matching gives each its own. A group
larger than K keeps the nearest code for what does not fit. It does not change any other code, nor groups without a
collision: there the nearest codes are the cheapest already.

Shapes: N items, G items of one group, L levels, K codes.
"""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Distances = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def reassign_last_code(
    codes_NL: NDArray[np.int64], num_codes: int, distances: Distances, first_N: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """New codes int64 [N, L] with distinct SIDs wherever a group has at most K items.

    Args:
        codes_NL: codes by nearest neighbour.
        num_codes: K.
        distances: the cost of every last code for the given item numbers [G] under their prefix, [G, K].
        first_N: items that choose before the others (default: all at once). Items outside the fit choose last, as new
            items in the service do, so that they do not push known items about.
    """
    result = codes_NL.copy()
    first_N = np.ones(len(codes_NL), np.bool_) if first_N is None else first_N
    for members in prefix_groups(codes_NL).values():
        if len(np.unique(codes_NL[members, -1])) < len(members):
            free = np.ones(num_codes, np.bool_)
            for turn in (members[first_N[members]], members[~first_N[members]]):
                _match(result, turn, free, distances)
    return result


def prefix_groups(codes_NL: NDArray[np.int64]) -> dict[tuple[int, ...], NDArray[np.int64]]:
    """Item numbers by all codes but the last, in item order."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for item, codes in enumerate(codes_NL.tolist()):
        groups[tuple(codes[:-1])].append(item)
    return {prefix: np.array(members) for prefix, members in groups.items()}


def number_inside_buckets(codes_NL: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each item among those with the same SID, in item order, int64 [N]."""
    seen: dict[tuple[int, ...], int] = defaultdict(int)
    places = np.empty(len(codes_NL), np.int64)
    for item, codes in enumerate(codes_NL.tolist()):
        places[item] = seen[tuple(codes)]
        seen[tuple(codes)] += 1
    return places


def _match(
    codes_NL: NDArray[np.int64], members_G: NDArray[np.int64], free_K: NDArray[np.bool_], distances: Distances
) -> None:
    if not len(members_G) or not free_K.any():
        return
    offered = np.flatnonzero(free_K)
    rows, chosen = linear_sum_assignment(distances(members_G)[:, offered])
    codes_NL[members_G[rows], -1] = offered[chosen]
    free_K[offered[chosen]] = False
