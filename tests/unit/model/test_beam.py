"""The beam returns what brute force over all existing SIDs returns, and never anything else."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from service.model.beam import BeamQuery, Beams, beam_search
from service.model.live_trie import LiveTrie
from service.model.semantic_ids import Sid

CODES, LEVELS = 5, 3
ALL_SIDS = np.array(list(itertools.product(range(CODES), repeat=LEVELS)))


@dataclass
class TableModel:
    """A model whose next-code distribution is a random table over the whole prefix."""

    tables: list[Tensor]

    @classmethod
    def random(cls, users: int, seed: int) -> "TableModel":
        generator = torch.Generator().manual_seed(seed)
        shapes = [(users, *[CODES] * (level + 1)) for level in range(LEVELS)]
        return cls([torch.log_softmax(2 * torch.randn(shape, generator=generator), -1) for shape in shapes])

    def first(self) -> Tensor:
        return self.tables[0]

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        return self.tables[codes_Rn.shape[1]][(user_R, *codes_Rn.unbind(1))]

    def score(self, user: int, sid: Sid) -> float:
        return sum(float(self.tables[level][(user, *sid[: level + 1])]) for level in range(LEVELS))


def search(
    sids: NDArray[np.int64], model: TableModel, widths: list[int], excluded: list[NDArray[np.int64]] | None = None
) -> list[Beams]:
    trie = LiveTrie.build(sids, CODES)
    without = excluded or [sids[:0]] * len(widths)
    queries = [BeamQuery(trie, width, torch.from_numpy(gone)) for width, gone in zip(widths, without, strict=True)]
    return beam_search(model, queries)


def brute_force(model: TableModel, user: int, sids: set[Sid]) -> list[tuple[float, Sid]]:
    return sorted(((model.score(user, sid), sid) for sid in sids), reverse=True)


def as_sids(beams: Beams) -> list[Sid]:
    return [tuple(sid) for sid in beams.codes_nL.tolist()]


def random_sids(seed: int, count: int) -> NDArray[np.int64]:
    return ALL_SIDS[np.random.default_rng(seed).permutation(len(ALL_SIDS))[:count]]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 125), excluded=st.integers(0, 125))
def test_a_wide_beam_equals_brute_force_with_exclusions(seed: int, count: int, excluded: int) -> None:
    sids = random_sids(seed, count)
    model = TableModel.random(2, seed)
    both = search(sids, model, [125, 125], [sids[:excluded], sids[:0]])
    for user, dead in ((0, sids[:excluded]), (1, sids[:0])):
        legal = {tuple(sid) for sid in sids.tolist()} - {tuple(sid) for sid in dead.tolist()}
        want = brute_force(model, user, legal)
        assert as_sids(both[user]) == [sid for _, sid in want]
        assert both[user].score_n.tolist() == pytest.approx([score for score, _ in want], abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 125), width=st.integers(1, 12), excluded=st.integers(0, 60))
def test_any_beam_returns_legal_distinct_sids_best_first_and_fills_its_width(
    seed: int, count: int, width: int, excluded: int
) -> None:
    sids = random_sids(seed, count)
    beams = search(sids, TableModel.random(1, seed), [width], [sids[:excluded]])[0]
    legal = {tuple(sid) for sid in sids[excluded:].tolist()}
    found = as_sids(beams)
    assert len(found) == min(width, len(legal))
    assert len(set(found)) == len(found)
    assert set(found) <= legal
    assert torch.all(beams.score_n.diff() <= 0)
    assert beams.level_score_nL.sum(1).tolist() == pytest.approx(beams.score_n.tolist(), abs=1e-5)


def test_users_of_different_widths_do_not_disturb_each_other() -> None:
    sids, model = random_sids(3, 60), TableModel.random(3, 3)
    together = search(sids, model, [1, 7, 60])
    for user, width in enumerate((1, 7, 60)):
        alone = search(sids, TableModel([t[user : user + 1] for t in model.tables]), [width])[0]
        assert as_sids(together[user]) == as_sids(alone)


def test_minionerec_50_an_empty_allowed_list_is_an_empty_answer_not_an_unmasked_one() -> None:
    sids = random_sids(1, 20)
    assert as_sids(search(sids, TableModel.random(1, 1), [5], [sids])[0]) == []


def test_transformers_27676_an_empty_catalogue_gives_a_short_list_not_nan() -> None:
    beams = search(ALL_SIDS[:0], TableModel.random(2, 0), [5, 5])
    assert [as_sids(found) for found in beams] == [[], []]


def test_transformers_22890_legal_codes_of_probability_zero_do_not_lift_the_constraint() -> None:
    sids = np.array([[0, 0, 0], [1, 1, 1]])
    model = TableModel.random(1, 0)
    model.tables[0][0, 0] = float("-inf")
    assert as_sids(search(sids, model, [5])[0]) == [(1, 1, 1)]
    model.tables[0][0, 1] = float("-inf")
    assert as_sids(search(sids, model, [5])[0]) == []


def test_genre_51_the_constraint_follows_the_whole_prefix_not_the_last_code() -> None:
    found = as_sids(search(np.array([[0, 1, 2], [3, 1, 4]]), TableModel.random(1, 5), [50])[0])
    assert sorted(found) == [(0, 1, 2), (3, 1, 4)]


def test_tensorrt_llm_7368_every_beam_is_constrained_not_only_the_first() -> None:
    sids = random_sids(8, 30)
    found = as_sids(search(sids, TableModel.random(1, 8), [30])[0])
    assert {tuple(sid) for sid in sids.tolist()} == set(found)


def test_static_5_items_and_a_beam_of_10_give_5_items() -> None:
    sids = random_sids(2, 5)
    assert len(as_sids(search(sids, TableModel.random(1, 2), [10])[0])) == 5


def test_vllm_31081_beams_follow_their_own_parents() -> None:
    class Recorder(TableModel):
        seen = torch.zeros(2, 0, dtype=torch.int64)
        users = torch.arange(2)

        def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
            assert torch.equal(self.seen[parent_R], codes_Rn[:, :-1])
            assert torch.equal(self.users[parent_R], user_R)
            self.seen, self.users = codes_Rn, user_R
            return super().next(codes_Rn, user_R, parent_R)

    search(ALL_SIDS, Recorder(TableModel.random(2, 4).tables), [9, 4])


def test_vllm_10792_a_beam_wider_than_20_is_served() -> None:
    beams = search(ALL_SIDS, TableModel.random(1, 6), [100])[0]
    assert len(as_sids(beams)) == 100


def test_transformers_17812_and_lc_rec_17_no_answer_holds_a_sid_twice() -> None:
    for seed in range(20):
        sids = random_sids(seed, 40)
        found = as_sids(search(sids, TableModel.random(1, seed), [40])[0])
        assert len(found) == len(set(found)) == 40


def test_tensorrt_llm_12838_and_xllm_488_a_beam_far_wider_than_the_catalogue_ends_with_all_of_it() -> None:
    beams = search(ALL_SIDS, TableModel.random(2, 9), [5000, 512])
    assert [len(as_sids(found)) for found in beams] == [125, 125]


def test_of_equal_scores_the_smaller_sids_are_kept_at_every_width() -> None:
    model = TableModel([torch.full((1, *[CODES] * (level + 1)), -1.0) for level in range(LEVELS)])
    for width in (1, 7, 26, 512):
        found = as_sids(search(random_sids(4, 90), model, [width])[0])
        assert found == sorted(found)
        if width > 26:
            assert found == sorted(tuple(sid) for sid in random_sids(4, 90).tolist())


def test_a_row_of_nan_loses_its_own_beams_and_no_others() -> None:
    model = TableModel.random(2, 4)
    model.tables[1][0, 3] = float("nan")
    broken, sound = search(ALL_SIDS, model, [200, 200])
    assert {sid[0] for sid in as_sids(broken)} == {0, 1, 2, 4}
    assert len(as_sids(broken)) == 100
    assert not torch.isnan(broken.score_n).any()
    assert len(as_sids(sound)) == 125


def test_fewer_results_than_beams_are_the_first_of_them() -> None:
    trie, model = LiveTrie.build(ALL_SIDS, CODES), TableModel.random(1, 3)
    nothing = torch.zeros(0, LEVELS, dtype=torch.int64)
    wide = beam_search(model, [BeamQuery(trie, 20, nothing)])[0]
    cut = beam_search(model, [BeamQuery(trie, 20, nothing, num_results=5)])[0]
    assert as_sids(cut) == as_sids(wide)[:5]


def test_pruning_an_inner_level_is_not_exact_and_scoring_all_of_it_is() -> None:
    assert not search(ALL_SIDS, TableModel.random(1, 3), [5])[0].exact
    assert search(ALL_SIDS, TableModel.random(1, 3), [15])[0].exact
    assert search(ALL_SIDS[:0], TableModel.random(1, 3), [5])[0].exact
