"""Blending from training to checkpoint: who keeps company, weights that find what tells, the same order everywhere."""

import io
import json
from typing import Literal, cast

import numpy as np
import pytest
import torch
from rich.console import Console

from service.blending import Blending
from service.model.blend import NONE, Blend, BlendWeights, Neighbours
from service.model.checkpoint import open_checkpoint
from service.model.grounded_lm import load_grounded_lm
from tests.training.tiny_run import TinyWorld, build
from training.baselines import CoOccurrence, Transitions
from training.blend_fit import Choice, fit_weights
from training.blended_recommender import BlendedRecommender, fit_blend
from training.config import BlendRecipe
from training.data import Example
from training.evaluate import MODEL_ALONE, OURS
from training.neighbours import neighbours_of
from training.pipeline import Pipeline
from training.progress import Reporter
from training.recommender import BeamRecommender, Recommended

START = BlendWeights(1.0, 0.0, 0.0)
TRAIN = {"a": (0, 1, 2, 0), "b": (1, 2), "c": (3, 1), "d": (2, 1, 4)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return build(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def run(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    pipeline = world.pipeline(tmp_path_factory.mktemp("run") / "blended")
    pipeline.train()
    return pipeline


def quiet() -> Reporter:
    return Reporter(Console(file=io.StringIO()))


@pytest.mark.parametrize("company", ["co_occurrence", "transitions"])
def test_neighbours_are_the_best_of_the_baseline_s(company: Literal["co_occurrence", "transitions"]) -> None:
    part = BlendRecipe(company=company, neighbours=3, temperature=0.1)
    embedding = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    found = neighbours_of(TRAIN, embedding / np.linalg.norm(embedding, axis=1, keepdims=True), part, quiet())
    scorer = CoOccurrence(TRAIN, 6) if company == "co_occurrence" else Transitions(TRAIN, 6, part)
    for item in range(6):
        wanted = np.array(scorer.scores([item]))
        wanted[item] = 0.0
        order = [int(other) for other in np.argsort(-wanted, kind="stable") if wanted[other] > 0][:3]
        assert found.neighbour_NQ[item].tolist() == [*order, *[NONE] * (3 - len(order))]
        assert found.strength_NQ[item, : len(order)] == pytest.approx(wanted[order])


def test_a_catalogue_too_large_for_transitions_has_co_occurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = np.eye(6, dtype=np.float32)
    wanted = neighbours_of(TRAIN, embedding, BlendRecipe(company="co_occurrence"), quiet())
    monkeypatch.setattr("training.neighbours.MAX_ITEMS", 5)
    said = io.StringIO()
    found = neighbours_of(TRAIN, embedding, BlendRecipe(), Reporter(Console(file=said, width=200)))
    assert np.array_equal(found.neighbour_NQ, wanted.neighbour_NQ)
    assert "6 items are more than 5, too many for transitions" in said.getvalue()


def choices(of: tuple[float, float, float], users: int = 3000) -> list[Choice]:
    """Users who choose by a known rule among twenty candidates each."""
    random = np.random.default_rng(1)
    made = []
    for _ in range(users):
        feature = random.normal(size=(20, 3))
        made.append(Choice(feature, int((feature @ np.array(of) + random.gumbel(size=20)).argmax())))
    return made


def test_the_fit_finds_the_rule_that_made_the_choices() -> None:
    weights, _ = fit_weights(choices((0.8, 0.0, 0.5)), START)
    assert (weights.model, weights.company, weights.text) == pytest.approx((0.8, 0.0, 0.5), abs=0.1)
    assert weights.reach == 1.0


def test_no_item_is_worse_for_being_near() -> None:
    weights, _ = fit_weights(choices((0.8, -0.4, 0.5)), START)
    assert weights.company == 0.0 and weights.model > 0.6


class Shuffled:
    """A beam whose order is the opposite of what users choose."""

    def recommend(self, histories: object, **_: object) -> Recommended:
        return Recommended([[0, 1, 2]] * 40, [[-0.5, -1.5, -4.0]] * 40, 0)


def test_a_blend_in_which_nothing_tells_is_the_model_alone() -> None:
    """Weights of zero would rank by the order of the catalogue."""
    embedding = np.eye(4, dtype=np.float32)
    alone = Neighbours(np.full((4, 1), NONE, np.int32), np.zeros((4, 1), np.float32), np.zeros(4, np.float32))
    backwards = BlendedRecommender(cast(BeamRecommender, Shuffled()), Blend(alone, embedding, START), np.arange(4))
    examples = [Example(f"u{n}", (3,), 2) for n in range(40)]
    said = io.StringIO()
    assert fit_blend(backwards, examples, exclude_seen=True, reporter=Reporter(Console(file=said))) is None
    assert "nothing tells which candidate 40 users chose: the model alone" in said.getvalue()


def test_reach_is_the_share_of_events_among_the_candidates() -> None:
    some = choices((1.0, 0.0, 0.0), 300)
    lost = [Choice(choice.feature_C3, -1) for choice in some[:100]]
    assert fit_weights([*lost, *some[100:]], START)[0].reach == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="nothing to fit on"):
        fit_weights(lost, START)


def test_both_the_blend_and_the_model_alone_are_measured(run: Pipeline) -> None:
    metrics = json.loads((run.evaluated.folder / "metrics.json").read_text())
    for way in ("seen_excluded", "seen_included"):
        assert {OURS, MODEL_ALONE, f"{OURS}_minus_{MODEL_ALONE}"} <= set(metrics[way])
    assert metrics["distinct_rate"] == 1.0 and metrics["illegal_rate"] == 0.0


def test_the_checkpoint_blends_as_the_run_that_made_it(run: Pipeline) -> None:
    checkpoint = open_checkpoint(run.run.path / "checkpoint")
    tensors, blend = checkpoint.catalog_tensors(), checkpoint.blend()
    assert blend is not None and run.blend is not None and blend.weights == run.blend.weights
    model = load_grounded_lm(checkpoint, torch.float32)
    beam = BeamRecommender(model, tensors.codes_NL, tensors.popularity_N, max_items=8, beam_width=10)
    histories = [(0, 1, 2), (5,), (7, 9, 30, 31)]
    ours = BlendedRecommender(beam, blend, np.arange(40)).recommend(histories, exclude_seen=True)
    assert ours.items == run.recommender().recommend(histories, exclude_seen=True).items
    assert ours.beam is not None and ours.items != ours.beam.items
    for history, items in zip(histories, ours.items, strict=True):
        assert not set(items) & set(history)


def test_the_service_ranks_as_evaluation_does(run: Pipeline) -> None:
    assert run.blend is not None
    recommender = run.recommender()
    assert isinstance(recommender, BlendedRecommender)
    found = recommender.recommend([(3, 4, 9)], exclude_seen=True)
    names = [item.item_id for item in run.data.dataset.items]
    assert found.beam is not None
    beam = [(names[item], score) for item, score in zip(found.beam.items[0], found.beam.scores[0], strict=True)]
    served = list(Blending(names, run.blend).scored([names[3], names[4], names[9]], beam))
    assert [item_id for item_id, _ in served] == [names[item] for item in found.items[0]]
    assert [score for _, score in served] == pytest.approx(found.scores[0])


def test_items_that_the_model_never_met_take_no_part(run: Pipeline) -> None:
    """Item 40 is newer: it stands in the history and changes nothing."""
    assert run.blend is not None
    row_N = np.append(np.arange(40), -1)
    recommender = BlendedRecommender(run.beam(10), run.blend, row_N)
    plain, _ = run.blend.ranked(*recommender._inputs((3, 4), [7, 8], [-1.0, -2.0]))
    mixed, _ = run.blend.ranked(*recommender._inputs((3, 40, 4), [7, 40, 8], [-1.0, -1.5, -2.0]))
    assert plain.tolist() == mixed.tolist()


def test_too_few_events_leave_the_model_alone(world: TinyWorld, run: Pipeline) -> None:
    few = world.pipeline(run.run.path.parent / "few", blend={"users": 5})
    few.train()
    assert few.blend is None and open_checkpoint(few.run.path / "checkpoint").manifest.blend is None


def test_a_recipe_may_leave_the_model_alone(world: TinyWorld, run: Pipeline) -> None:
    alone = world.pipeline(run.run.path.parent / "alone", blend={"enabled": False})
    alone.train()
    assert alone.blend is None and isinstance(alone.recommender(), BeamRecommender)
    assert MODEL_ALONE not in json.loads((alone.evaluated.folder / "metrics.json").read_text())["seen_excluded"]


def test_blend_weights_are_data_that_the_manifest_checks(run: Pipeline) -> None:
    part = open_checkpoint(run.run.path / "checkpoint").manifest.blend
    assert part is not None and isinstance(part.weights, BlendWeights)
    assert 0 < part.reach <= 1 and min(part.model, part.company, part.text) >= 0
    assert isinstance(run.blend, Blend)
