"""Grounding makes distinct, meaningful rows for new tokens, moves nothing else, and resumes exactly."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.tiny_backbone import WIDTH, backbone
from training.backbone import Backbone, add_sid_tokens
from training.errors import RecipeError, ResumeError
from training.grounding import lm
from training.grounding.base import GroundingContext, GroundingResult
from training.grounding.keywords import typical_tokens
from training.grounding.registry import objective
from training.grounding.templates import PairMaker

LEVELS, CODES = 2, 4
TEXTS = [f"{kind} <a_1> {number}" for kind in ("boat", "lamp", "tree", "fork") for number in range(4)]


def context(made: Backbone | None = None, seed: int = 0) -> GroundingContext:
    """Sixteen items: the first code is the kind, the second the number."""
    made = made or backbone()
    space = add_sid_tokens(made, LEVELS, CODES)
    codes_NL = np.array([[kind, number] for kind in range(4) for number in range(4)])
    codebooks_LKE = np.random.default_rng(1).normal(size=(LEVELS, CODES, 6)).astype(np.float32)
    return GroundingContext(made, space, codes_NL, TEXTS, seed, codebooks_LKE)


def ground(
    given: GroundingContext, steps: int = 12, state_file: Path | None = None, **options: object
) -> GroundingResult:
    return objective("lm", steps=steps, batch_size=8, **options).ground(given, state_file=state_file)


@pytest.mark.parametrize("name", ["mean", "random", "codebook", "keywords", "regression", "lm"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
@pytest.mark.parametrize("tied", [True, False])
def test_only_new_rows_come_out_and_the_backbone_is_bit_equal(name: str, family: str, tied: bool) -> None:
    given = context(backbone(family, tied=tied))
    model = given.backbone.model
    model.requires_grad_(True)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    made = objective(name, **({"steps": 4, "batch_size": 4} if name == "lm" else {})).ground(given)
    assert made.sid_rows.shape == (LEVELS * CODES, WIDTH)
    assert made.sid_rows.dtype == torch.float32
    assert (made.sid_head is None) == tied
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_both_directions_are_learned(tied: bool) -> None:
    made = ground(context(backbone(tied=tied)), steps=120, lr=3e-2)
    to_text, to_sid = np.array(made.losses[0::2]), np.array(made.losses[1::2])
    assert to_text[-10:].mean() < to_text[:3].mean() - 0.05  # one word in many depends on the code
    assert to_sid[-10:].mean() < to_sid[:3].mean() - 0.1
    assert (made.steps, made.samples) == (120, 960)
    assert made.cpu_seconds > 0


def test_an_untied_head_learns_rows_of_its_own() -> None:
    made = ground(context(backbone(tied=False)), lr=1e-2)
    assert made.sid_head is not None
    assert (made.sid_rows - made.sid_head).abs().max() > 1e-3


@pytest.mark.parametrize("tied", [True, False])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    monkeypatch.setattr(lm, "SAVE_EVERY", 5)
    state_file = tmp_path / "lm.safetensors"
    whole = ground(context(backbone(tied=tied)))

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 8:
            raise KeyboardInterrupt

    stopped = objective("lm", steps=12, batch_size=8)
    with pytest.raises(KeyboardInterrupt):
        stopped.ground(context(backbone(tied=tied)), stop, state_file)
    seen: list[int] = []
    resumed = stopped.ground(context(backbone(tied=tied)), lambda done, total, note="": seen.append(done), state_file)
    assert seen == list(range(6, 13))
    assert torch.allclose(whole.sid_rows, resumed.sid_rows, atol=1e-6, rtol=0)
    if whole.sid_head is not None and resumed.sid_head is not None:
        assert torch.allclose(whole.sid_head, resumed.sid_head, atol=1e-6, rtol=0)
    assert whole.losses == pytest.approx(resumed.losses, abs=1e-6)


def test_the_state_of_another_grounding_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "SAVE_EVERY", 5)
    state_file = tmp_path / "lm.safetensors"
    ground(context(), steps=5, state_file=state_file)
    fresh = ground(context(seed=1), steps=5)
    assert torch.equal(ground(context(seed=1), steps=5, state_file=state_file).sid_rows, fresh.sid_rows)


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    state_file = tmp_path / "lm.safetensors"
    state_file.write_bytes(b"half a file")
    with pytest.raises(ResumeError, match="delete it"):
        ground(context(), state_file=state_file)


def test_bfloat16_rows_are_trained_through_float32_masters() -> None:
    made = backbone()
    made.model.bfloat16()
    given = context(made)
    before = objective("mean").ground(given).sid_rows
    after = ground(given, lr=1e-5).sid_rows
    assert (after - before).abs().max() > 0
    assert given.vocabulary_VD.dtype == torch.bfloat16


def test_regression_gives_a_code_the_mean_of_its_items() -> None:
    given = context()
    made = objective("regression", layer=1, pooling="last").ground(given)
    rows = made.sid_rows.view(LEVELS, CODES, WIDTH) - given.vocabulary_VD.float().mean(0)
    spread = (given.vocabulary_VD - given.vocabulary_VD.mean(0)).norm(dim=1).mean()
    assert torch.allclose(rows.norm(dim=-1).mean(1), spread, rtol=1e-4)
    # every level's codes partition the items evenly, so centred means sum to zero
    assert torch.allclose(rows.sum(1), torch.zeros(LEVELS, WIDTH), atol=1e-3)


def test_a_code_without_items_starts_at_the_mean() -> None:
    given = context()
    given.codes_NL[given.codes_NL[:, 0] == 3, 0] = 2
    made = objective("regression").ground(given)
    mean = objective("mean").ground(given)
    assert torch.equal(made.sid_rows[3], mean.sid_rows[3])


def test_grounding_may_start_from_regression() -> None:
    made = ground(context(), steps=1, start="regression", lr=1e-9)
    started = objective("regression", max_text_tokens=28).ground(context())
    assert torch.allclose(made.sid_rows, started.sid_rows, atol=1e-6)


def test_a_sid_token_in_a_text_stays_text_in_the_prompts() -> None:
    given = context()
    maker = PairMaker.of(given.backbone, given.space, TEXTS, 28)
    codes = torch.from_numpy(given.codes_NL)[[0, 5]]
    for pairs in (maker.ask_sid([0, 5], codes, 0), maker.ask_text([0, 5], codes, 1)):
        is_sid = pairs.token_BT >= given.space.first_token_id
        assert is_sid.sum(1).tolist() == [LEVELS, LEVELS]
    asked = maker.ask_sid([0, 5], codes, 0)
    assert asked.answers_M.view(2, LEVELS).tolist() == [given.space.token_ids(row) for row in codes.tolist()]
    hidden = torch.arange(asked.token_BT.numel()).view(*asked.token_BT.shape, 1)
    assert (asked.token_BT.flatten()[asked.before_answers(hidden)[:, 0] + 1] == asked.answers_M).all()


def test_unknown_objectives_and_options_are_refused() -> None:
    with pytest.raises(RecipeError, match="choose lm, regression, mean, random, codebook, keywords"):
        objective("magic")
    with pytest.raises(RecipeError, match="stepz"):
        objective("lm", stepz=3)


def test_random_rows_have_the_vocabularys_mean_and_covariance() -> None:
    given = context()
    space = type(given.space)(2, 4000, given.space.first_token_id)
    vocabulary = given.vocabulary_VD.float()
    rows = objective("random").ground(replace(given, space=space)).sid_rows
    assert torch.allclose(rows.mean(0), vocabulary.mean(0), atol=0.01)
    assert torch.allclose(torch.cov(rows.T), torch.cov(vocabulary.T, correction=0), atol=0.002)


def test_codebook_rows_keep_the_distances_between_codes() -> None:
    given = context()
    rows_LKD = objective("codebook").ground(given).sid_rows.view(LEVELS, CODES, WIDTH)
    assert given.codebooks_LKE is not None
    for rows_KD, book_KE in zip(rows_LKD, torch.from_numpy(given.codebooks_LKE), strict=True):
        ratio = torch.pdist(rows_KD) / torch.pdist(book_KE)
        assert torch.allclose(ratio, ratio.mean().expand_as(ratio), rtol=1e-4)


def test_codebook_rows_need_a_codebook_that_fits() -> None:
    wide = np.zeros((LEVELS, CODES, WIDTH + 1), np.float32)
    for codebooks_LKE in (None, wide):
        with pytest.raises(RecipeError, match=f"width <= {WIDTH}"):
            objective("codebook").ground(replace(context(), codebooks_LKE=codebooks_LKE))


def test_keywords_are_what_a_code_has_and_others_do_not() -> None:
    overall = Counter({1: 4, 2: 2, 3: 1, 4: 4})
    assert typical_tokens([[1, 2, 4], [1, 2, 3]], overall, 4, 8) == [2, 3]
    given = context()
    rows = objective("keywords", words=1).ground(given).sid_rows
    vocabulary = given.vocabulary_VD.float()
    nearest = torch.cdist(rows[:4], vocabulary).argmin(1)  # one letter that only "boat", "lamp", "tree", "fork" has
    letters = [str(given.backbone.tokenizer.convert_ids_to_tokens(int(token))) for token in nearest]
    assert all(letter in kind for letter, kind in zip(letters, ("boat", "lamp", "tree", "fork"), strict=True))
