"""The policies that are compared are what they say, and the service's is the one that the log of items decides by."""

from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.model.checkpoint import ItemRecord
from service.model.quantizer import ResidualQuantizer
from service.stores.item_log import ItemDraft
from service.stores.memory_items import MemoryItemLog
from training.experiments.collision_policies.policies import POLICIES, assign, residual

LEVELS, CODES, WIDTH = 3, 4, 6


@pytest.fixture
def quantizer() -> ResidualQuantizer:
    random = torch.Generator().manual_seed(0)
    scale = torch.tensor([4.0, 2.0, 1.0])[:, None, None]
    return ResidualQuantizer(torch.randn(LEVELS, CODES, WIDTH, generator=random) * scale)


@pytest.fixture
def posted() -> NDArray[np.float32]:
    """Thirty texts around three places, so that prefixes fill up."""
    random = np.random.default_rng(1)
    centre = random.normal(size=(3, WIDTH))[np.arange(30) % 3]
    return np.asarray(centre + 0.1 * random.normal(size=centre.shape), np.float32)


TRAINED = np.array(list(product(range(CODES), range(CODES), [1])), np.int64)


async def test_the_least_filled_code_is_what_the_item_log_chooses(
    quantizer: ResidualQuantizer, posted: NDArray[np.float32]
) -> None:
    log, trained, chosen = MemoryItemLog(), {tuple(codes) for codes in TRAINED.tolist()}, []
    generation = (await log.begin()).generation
    for number, embedding_E in enumerate(torch.from_numpy(posted)):
        prefix = tuple(quantizer.encode(embedding_E[None])[0, :-1].tolist())
        codes = quantizer.last_level_preferences(embedding_E, prefix)
        free = tuple(code for code in codes if (*prefix, code) not in trained)
        taken = tuple(code for code in codes if (*prefix, code) in trained)
        draft = ItemDraft(ItemRecord(f"i{number}", "t", "", {}), "h", b"", prefix, free, taken)
        chosen += [claim.sid for claim in await log.append(generation, [draft])]
    assert list(map(tuple, assign(POLICIES["least_filled"], quantizer, TRAINED, posted).tolist())) == chosen


def test_a_bucket_is_the_quantisers_own_sid(quantizer: ResidualQuantizer, posted: NDArray[np.float32]) -> None:
    own = quantizer.encode(torch.from_numpy(posted)).numpy()
    assert (assign(POLICIES["bucket"], quantizer, TRAINED, posted) == own).all()


def test_neighbouring_prefixes_give_the_free_sid_with_the_least_residual(
    quantizer: ResidualQuantizer, posted: NDArray[np.float32]
) -> None:
    given = assign(POLICIES["neighbour_prefixes"], quantizer, TRAINED, posted[:9])
    held = {tuple(codes) for codes in TRAINED.tolist()}
    for embedding_E, sid in zip(torch.from_numpy(posted[:9]), map(tuple, given.tolist()), strict=True):
        open_sids = [(sid[0], *pair) for pair in product(range(CODES), repeat=2) if (sid[0], *pair) not in held]
        left = (residual(quantizer, embedding_E.repeat(len(open_sids), 1), torch.tensor(open_sids)) ** 2).sum(1)
        assert open_sids[int(left.argmin())] == sid
        held.add(sid)
