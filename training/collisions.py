"""Collisions removed at equal length: the last code is reassigned inside each prefix group at minimal total cost.

Items that share all but the last code compete for the K last codes; a minimum-cost matching gives each its own. A group
larger than K keeps the nearest code for what does not fit. It does not change any other code.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment


def reassign_last_code(codes_NL: NDArray[np.int64], distance_NK: NDArray[np.float32]) -> NDArray[np.int64]:
    """New codes int64 [N, L] with distinct SIDs wherever a group has at most K items.

    Args:
        codes_NL: codes by nearest neighbour.
        distance_NK: cost of giving item n the last code k.
    """
    result = codes_NL.copy()
    for members in prefix_groups(codes_NL).values():
        rows, chosen = linear_sum_assignment(distance_NK[members])
        result[np.array(members)[rows], -1] = chosen
    return result


def prefix_groups(codes_NL: NDArray[np.int64]) -> dict[tuple[int, ...], list[int]]:
    """Items by all codes but the last, in item order."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for item, codes in enumerate(codes_NL.tolist()):
        groups[tuple(codes[:-1])].append(item)
    return groups


def number_inside_buckets(codes_NL: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each item among those with the same SID, in item order, int64 [N]."""
    seen: dict[tuple[int, ...], int] = defaultdict(int)
    places = np.empty(len(codes_NL), np.int64)
    for item, codes in enumerate(codes_NL.tolist()):
        places[item] = seen[tuple(codes)]
        seen[tuple(codes)] += 1
    return places
