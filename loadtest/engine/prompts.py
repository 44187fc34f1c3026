"""Prompts of an exact length: a few text tokens, then the SIDs of random items of the catalogue."""

import numpy as np
from numpy.typing import NDArray

from service.model.semantic_ids import SidSpace


def history_prompts(
    space: SidSpace, codes_NL: NDArray[np.integer], users: int, tokens: int, random: np.random.Generator
) -> list[list[int]]:
    """``users`` different prompts of ``tokens`` token ids: 1..L text tokens and as many whole items as fit.

    Raises:
        ValueError: not even one item fits.
    """
    items = (tokens - 1) // space.levels
    if items < 1:
        raise ValueError(f"a prompt of {tokens} tokens has no room for an item of {space.levels}")
    text = tokens - items * space.levels
    chosen_UI = random.integers(0, len(codes_NL), (users, items))
    offsets_L = space.first_token_id + np.arange(space.levels) * space.codes
    history_UT = (codes_NL[chosen_UI].astype(np.int64) + offsets_L).reshape(users, -1)
    return [[*range(1, text + 1), *row] for row in history_UT.tolist()]


def legal_mask(share: float, key: str, sids: int) -> NDArray[np.bool_]:
    """Which SIDs a filter named ``key`` lets through, by slot; the same in every process."""
    seed = np.frombuffer(key.encode().ljust(4, b"\0"), np.uint8).tolist()
    mask: NDArray[np.bool_] = np.random.default_rng(seed).random(sids) < share
    return mask
