"""Classification pre-training reaches what any function of the prefix can reach, and leaves unseen rows silent."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from service.model.semantic_ids import SidSpace
from training.prefix_memory.base import Lessons, PretrainOptions, PretrainReport
from training.prefix_memory.classification import pretrain_classification

SPACE = SidSpace(3, 8, 100)


def codes(items: int = 80) -> NDArray[np.int64]:
    found = np.unique(np.random.default_rng(0).integers(0, SPACE.codes, (4 * items, 3)), axis=0)
    return np.random.default_rng(1).permutation(found)[:items]


def pretrained(occurrences: NDArray[np.int64], steps: int = 150) -> tuple[PrefixMemory, PretrainReport]:
    memory = PrefixMemory(PrefixMemoryConfig.sized(SPACE, orders=3, heads=2, width=32, max_rows=512), 16)
    lessons = Lessons(codes(), {"u": occurrences.tolist()}, [])
    report = pretrain_classification(memory, lessons, PretrainOptions(steps, 64, 3e-2, 0))
    return memory, report


def test_it_reaches_the_ceiling() -> None:
    _, report = pretrained(np.arange(80))
    assert len(report.accuracy) == len(report.ceiling) == 2
    assert report.accuracy == pytest.approx(report.ceiling, abs=0.03)
    assert report.ceiling[0] < report.ceiling[1] < 1


def test_the_ceiling_is_the_majority_of_what_was_seen() -> None:
    seen = codes()
    _, report = pretrained(np.arange(80), steps=1)
    hits = sum(
        np.unique(seen[(seen[:, :2] == prefix).all(1), 2], return_counts=True)[1].max()
        for prefix in np.unique(seen[:, :2], axis=0)
    )
    assert report.ceiling[1] == pytest.approx(hits / 80)


def test_frequent_items_count_as_often_as_they_occur() -> None:
    seen = codes()
    first = seen[:, 0] == seen[0, 0]
    rival = next(n for n in np.flatnonzero(first) if seen[n, 1] != seen[0, 1])
    _, report = pretrained(np.array([0, 0, 0, rival]))
    assert report.ceiling == report.accuracy == (0.75, 1.0)


def test_rows_of_unseen_prefixes_stay_silent() -> None:
    memory, _ = pretrained(np.array([0, 1, 1, 2]), steps=5)
    seen = torch.from_numpy(codes())
    assert int(memory.touched(0).sum()) == 4 * 2
    strangers = seen[~torch.isin(seen[:, 0], seen[:3, 0])]
    assert not memory.item_memory(strangers)[:, 0].any()
    assert memory.item_memory(seen[:3]).abs().sum() > 0


def test_attached_it_says_nothing_at_first() -> None:
    memory, _ = pretrained(np.arange(80), steps=5)
    assert not memory.item_embeddings(torch.from_numpy(codes())).any()


def test_it_repeats_itself() -> None:
    first, second = (pretrained(np.arange(80), steps=5)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.tables, second.tables, strict=True))
