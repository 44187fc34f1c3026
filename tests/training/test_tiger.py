"""TIGER decodes what its logits say, learns a habit, and stands in evaluation beside the other recommenders."""

import numpy as np
import pytest
import torch

from service.model.beam import BeamQuery, beam_search
from service.model.live_trie import LiveTrie
from service.model.semantic_ids import SidSpace
from tests.training.tiny_run import TinyWorld
from training.baselines import Scorer
from training.compared import Studied, baselines_of
from training.pipeline import Pipeline
from training.recommender import SidRecommender
from training.tiger import Tiger, TigerOptions
from training.tiger_batches import EventSampler, padded
from training.tiger_beam import TigerBeamModel
from training.tiger_training import TigerTraining, train_tiger

SPACE = SidSpace(3, 4, 0)
CODES = np.unique(np.random.default_rng(0).integers(0, 4, (40, 3)), axis=0)


def tiger() -> Tiger:
    torch.manual_seed(0)
    return Tiger(SPACE, TigerOptions(width=16, layers=1, heads=2)).eval().requires_grad_(False)


def test_the_beam_finds_the_best_sids_by_the_model_s_own_probabilities() -> None:
    model, histories = tiger(), [[0, 3, 5], [7]]
    codes_BNL, known_BN = padded(histories, CODES)
    trie = LiveTrie.build(CODES, 4)
    found = beam_search(
        TigerBeamModel(model, codes_BNL, known_BN),
        [BeamQuery(trie, len(CODES), torch.zeros(0, 3, dtype=torch.int64)) for _ in histories],
    )
    every = torch.from_numpy(CODES)
    for user, beams in enumerate(found):
        alone = padded([histories[user]], CODES)
        repeated = [part.expand(len(every), *part.shape[1:]) for part in alone]
        logits = model.level_logits(repeated[0], repeated[1], every)
        scores = sum(
            torch.log_softmax(level, -1).gather(1, every[:, n : n + 1])[:, 0] for n, level in enumerate(logits)
        )
        assert isinstance(scores, torch.Tensor)
        best = torch.sort(scores, descending=True)
        torch.testing.assert_close(beams.score_n, best.values, atol=1e-4, rtol=1e-4)
        assert beams.codes_nL[0].tolist() == every[best.indices[0]].tolist()


def test_padding_and_the_future_change_nothing() -> None:
    model = tiger()
    next_BL = torch.from_numpy(CODES[:1])
    alone = model.level_logits(*padded([[1, 2]], CODES), next_BL)
    codes_BNL, known_BN = padded([[1, 2], [3, 4, 5, 6]], CODES)
    together = model.level_logits(codes_BNL, known_BN, next_BL.expand(2, -1))
    for one, both in zip(alone, together, strict=True):
        torch.testing.assert_close(one[0], both[0], atol=1e-5, rtol=1e-5)
    changed = next_BL.clone()
    changed[0, 1] = (changed[0, 1] + 1) % 4
    after = model.level_logits(*padded([[1, 2]], CODES), changed)
    assert torch.equal(alone[1], after[1])
    assert not torch.equal(alone[2], after[2])


def test_events_are_drawn_with_what_came_before_them() -> None:
    sampler = EventSampler({"u": [4, 5, 6], "lonely": [1]}, CODES, max_items=1, batch_size=64, seed=0)
    batch = sampler.draw()
    assert batch.known_BN.all()
    pairs = {(tuple(h[0].tolist()), tuple(n.tolist())) for h, n in zip(batch.codes_BNL, batch.next_BL, strict=True)}
    sids = [tuple(sid) for sid in CODES.tolist()]
    assert pairs == {(sids[4], sids[5]), (sids[5], sids[6])}
    with pytest.raises(ValueError, match="no next item"):
        EventSampler({"lonely": [1]}, CODES, max_items=1, batch_size=1, seed=0)


@pytest.mark.parametrize("with_memory", [False, True])
def test_it_learns_a_habit(finished: Pipeline, with_memory: bool) -> None:
    data = finished.data
    made = train_tiger(
        data.split,
        finished.codes_NL,
        data.popularity_N,
        finished.recipe,
        with_memory=with_memory,
        training=TigerTraining(steps=120, batch_size=32, lr=1e-2, check_every=60, valid_users=20),
    )
    examples = data.split.test
    found = made.recommend([e.history for e in examples], exclude_seen=True)
    assert found.illegal == 0
    hits = np.mean([e.target in items[:5] for e, items in zip(examples, found.items, strict=True)])
    assert hits > 0.4  # chance: 5 of about 30
    assert (made.tiger.memory is not None) == with_memory


def test_evaluation_has_rows_for_it(
    finished: Pipeline, world: TinyWorld, tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.compared.train_tiger", lambda *args, **options: quick(*args, **options))
    recipe = world.recipe()
    data = finished.data
    studied = Studied(data.split, data.popularity_N, finished.embedding_NE, finished.codes_NL, recipe)
    found = baselines_of(["popularity", "tiger", "tiger_memory"], studied)
    assert [isinstance(found[name], SidRecommender) for name in found] == [False, True, True]
    evaluation = finished.evaluation()
    report = type(evaluation)(evaluation.examples, found, evaluation.options, 0).measure(
        finished.recommender(), finished.run.reporter
    )
    for name in ("tiger", "tiger_memory"):
        assert 0 <= report["seen_excluded"][name]["recall@10"] <= 1
        assert f"ours_minus_{name}" in report["seen_included"]


def quick(*args: object, with_memory: bool) -> Scorer | SidRecommender:
    return train_tiger(*args, with_memory=with_memory, training=TigerTraining(steps=2, check_every=1))  # type: ignore[arg-type]
