"""The loss sees only the past, what must not move does not, and a resumed run is the same run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from service.model.grounded_lm import GroundedLM
from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from service.model.semantic_ids import SidSpace
from tests.training.tiny_backbone import WIDTH, backbone
from training.backbone import Backbone, add_sid_tokens
from training.batches import Batch, BatchPlan, ItemTokens
from training.errors import ResumeError
from training.finetune import FinetuneOptions, Finetuner, next_item_loss, parameter_groups
from training.grounding.pair_loss import PairLoss
from training.grounding.templates import PairMaker
from training.training_log import VALID

CODES = np.random.default_rng(0).integers(0, 6, (20, 3))
TRAIN = {f"u{n}": tuple((n + step) % 20 for step in range(9)) for n in range(24)}


def tiny_model(*, tied: bool = True) -> GroundedLM:
    made = backbone(tied=tied)
    space = SidSpace(3, 6, len(made.tokenizer))
    torch.manual_seed(1)
    rows = torch.randn(space.num_tokens, WIDTH) * 0.1
    memory = PrefixMemory(PrefixMemoryConfig.sized(space, orders=3, heads=2, width=8, max_rows=32), WIDTH)
    memory.reset_tables(0.5, 0)
    memory.count_touches(torch.from_numpy(CODES))
    return GroundedLM(made.model, space, (3, 4), rows, None if tied else rows.clone(), memory)


def tuner(
    model: GroundedLM,
    *,
    epochs: int = 3,
    values: list[float] | None = None,
    patience: int = 9,
    dropout: float = 0.0,
    average: float = 0.0,
) -> Finetuner:
    scores = iter(values or [0.1 * n for n in range(99)])
    options = FinetuneOptions(
        epochs=epochs,
        lr=0.01,
        warmup_steps=2,
        save_every=2,
        patience=patience,
        dropout=dropout,
        average=average,
    )
    return Finetuner(
        model, ItemTokens.untitled(CODES), TRAIN, BatchPlan(5, 5, 8, seed=0), options, lambda: next(scores)
    )


def aligned(model: GroundedLM, made: Backbone, *, steps: int, weight: float) -> Finetuner:
    texts = [f"thing {number} of {number % 3}" for number in range(20)]
    pairs = PairMaker.of(made, model.space, texts, 16)
    loss = PairLoss(model, pairs, torch.from_numpy(CODES), made.output_rows, 8, 0).loss
    options = FinetuneOptions(
        epochs=1, lr=0.01, warmup_steps=2, save_every=2, alignment_steps=steps, alignment_weight=weight
    )
    return Finetuner(model, ItemTokens.untitled(CODES), TRAIN, BatchPlan(5, 5, 8, seed=0), options, lambda: 1.0, loss)


def model_and_backbone() -> tuple[GroundedLM, Backbone]:
    made = backbone()
    space = add_sid_tokens(made, 3, 6)
    torch.manual_seed(1)
    return GroundedLM(made.model, space, (3, 4), torch.randn(space.num_tokens, WIDTH) * 0.1), made


def test_pairs_come_first_and_are_learned_through_the_whole_model() -> None:
    model, made = model_and_backbone()
    before = model.lm.get_parameter("model.layers.0.mlp.up_proj.weight").clone()
    text_before = made.input_rows[: model.space.first_token_id].clone()
    rows: list[dict[str, object]] = []
    made_by = aligned(model, made, steps=40, weight=0.0)
    made_by.run(log=lambda row: rows.append(dict(row)))
    assert [row["epoch"] for row in rows[:4]] == ["alignment"] * 4
    assert "alignment" not in [row["epoch"] for row in rows[4:]]
    assert made_by.total_steps == 40 + len(made_by.state.losses)
    assert not torch.equal(before, model.lm.get_parameter("model.layers.0.mlp.up_proj.weight"))
    assert torch.equal(text_before, made.input_rows[: model.space.first_token_id])


def test_weighted_pairs_beside_next_items_lower_the_pair_loss() -> None:
    def pair_loss_after(weight: float) -> float:
        model, made = model_and_backbone()
        tuner = aligned(model, made, steps=0, weight=weight)
        tuner.run()
        assert tuner._alignment is not None
        with torch.no_grad():
            return sum(float(tuner._alignment(step)) for step in range(16))

    assert pair_loss_after(2.0) < pair_loss_after(1e-9) - 1.0


def test_an_interrupted_alignment_ends_with_the_same_weights(tmp_path: Path) -> None:
    def stop_at_seven(done: int, total: int, note: str = "") -> None:
        if done == 7:
            raise KeyboardInterrupt

    whole, made = model_and_backbone()
    aligned(whole, made, steps=10, weight=0.5).run()
    state_file = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        aligned(*model_and_backbone(), steps=10, weight=0.5).run(state_file, progress=stop_at_seven)
    resumed, made = model_and_backbone()
    aligned(resumed, made, steps=10, weight=0.5).run(state_file)
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_alignment_without_pairs_is_refused() -> None:
    options = FinetuneOptions(epochs=1, lr=0.01, alignment_steps=5)
    with pytest.raises(ValueError, match="no pairs"):
        Finetuner(tiny_model(), ItemTokens.untitled(CODES), TRAIN, BatchPlan(5, 5, 8, seed=0), options, lambda: 1.0)


@torch.no_grad()
def test_the_loss_equals_teacher_forced_log_probabilities_one_by_one() -> None:
    model = tiny_model()
    codes = torch.from_numpy(CODES[[[0, 1, 2]]])
    found = next_item_loss(model, Batch(codes, torch.tensor([[False, False, True]])))
    inputs = model.embed_sequences(codes)
    expected = 0.0
    for level in range(3):
        seen = inputs[:, : 2 + 2 * 3 + level]
        logits = model.level_logits(model.hidden(seen)[0, -1], level)
        expected -= float(torch.log_softmax(logits, -1)[codes[0, 2, level]])
    assert float(found) == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def test_later_items_change_nothing_about_an_earlier_loss() -> None:
    model = tiny_model()
    target = torch.tensor([[False, True, False]])
    one, other = (torch.from_numpy(CODES[[[0, 1, last]]]) for last in (2, 7))
    assert float(next_item_loss(model, Batch(one, target))) == pytest.approx(
        float(next_item_loss(model, Batch(other, target))), abs=1e-6
    )


@pytest.mark.parametrize("tied", [True, False])
def test_the_text_vocabulary_does_not_move_and_the_rest_does(tied: bool) -> None:
    model = tiny_model(tied=tied)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tuner(model, epochs=1).run()
    after = model.state_dict()
    frozen = {"lm.model.embed_tokens.weight", "lm.lm_head.weight"}
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert not moved & frozen
    assert {"sid_rows", "memory.w_out.weight", "lm.model.norm.weight"} <= moved
    assert {name for name, _ in model.named_parameters()} - moved <= frozen


def test_gradient_checkpointing_computes_the_same_loss_and_gradients() -> None:
    def gradients(model: GroundedLM) -> tuple[float, list[torch.Tensor], int]:
        calls: list[int] = []
        model.lm.get_submodule("model.layers.0.mlp").register_forward_pre_hook(lambda *_: calls.append(1))
        parameter_groups(model, FinetuneOptions(epochs=1, lr=0.01))
        codes = torch.from_numpy(CODES[[[0, 1, 2], [3, 4, 5]]])
        loss = next_item_loss(model.train(), Batch(codes, torch.ones(2, 3, dtype=torch.bool)))
        loss.backward()  # type: ignore[no-untyped-call]
        found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return float(loss.detach()), found, len(calls)

    plain, checkpointed = tiny_model(), tiny_model()
    checkpointed.lm.gradient_checkpointing_enable({"use_reentrant": False})
    loss, expected, once = gradients(plain)
    same_loss, found, twice = gradients(checkpointed)
    assert (once, twice) == (1, 2), "layers must really be computed again"
    assert loss == same_loss
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_training_lowers_the_loss() -> None:
    state = tuner(tiny_model(), epochs=12).run()
    assert np.mean(state.losses[-5:]) < 0.7 * np.mean(state.losses[:5])


def test_the_best_epoch_is_kept_and_patience_ends_the_run() -> None:
    model, best = tiny_model(), tiny_model()
    state = tuner(model, epochs=9, values=[0.1, 0.5, 0.3, 0.2, 0.9], patience=2).run()
    assert (len(state.validation), state.best_epoch) == (4, 1)
    reference = tuner(best, epochs=9, values=[0.1, 0.5, 0.3, 0.2], patience=2)
    snapshots: list[torch.Tensor] = []
    reference.run(log=lambda row: snapshots.append(best.sid_rows.detach().clone()) if VALID in row else None)
    assert torch.equal(model.sid_rows, snapshots[1])


@pytest.mark.parametrize(("dropout", "average"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.9), (0.3, 0.9)])
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path, dropout: float, average: float) -> None:
    class Stop(Exception):
        pass

    def stop_at_seven(done: int, total: int, note: str = "") -> None:
        if done == 7:
            raise Stop

    whole, resumed, state_file = tiny_model(), tiny_model(), tmp_path / "state.safetensors"
    expected = tuner(whole, dropout=dropout, average=average).run()
    with pytest.raises(Stop):
        tuner(resumed, dropout=dropout, average=average).run(state_file, progress=stop_at_seven)
    fresh = tiny_model()
    torch.manual_seed(99)  # what happened before must not decide what is dropped
    found = tuner(fresh, values=[0.1, 0.1, 0.2, 0.3], dropout=dropout, average=average).run(state_file)
    assert found.losses == expected.losses
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), fresh.parameters(), strict=True))
    assert not state_file.exists()


def test_dropout_changes_training_and_leaves_no_trace_in_the_model() -> None:
    plain, dropped = tiny_model(), tiny_model()
    expected, found = tuner(plain, epochs=1).run(), tuner(dropped, epochs=1, dropout=0.3).run()
    assert found.losses[0] != expected.losses[0]
    codes = torch.from_numpy(CODES[[[0, 1, 2]]])
    hidden = [dropped.train().hidden(dropped.embed_sequences(codes)) for _ in range(2)]
    assert torch.equal(*hidden)


def test_validation_meets_the_average_and_the_best_average_is_kept() -> None:
    model = tiny_model()
    met: list[torch.Tensor] = []

    def validate() -> float:
        met.append(model.sid_rows.detach().clone())
        return -float(len(met) == 3)

    options = FinetuneOptions(epochs=3, lr=0.01, warmup_steps=2, average=0.9)
    made = Finetuner(model, ItemTokens.untitled(CODES), TRAIN, BatchPlan(5, 5, 8, seed=0), options, validate)
    seen: list[torch.Tensor] = []
    made.run(log=lambda row: seen.append(model.sid_rows.detach().clone()) if VALID in row else None)
    assert not any(torch.equal(average, plain) for average, plain in zip(met, seen, strict=True))
    assert torch.equal(model.sid_rows, met[0])


def test_a_state_file_that_is_no_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(ResumeError, match="delete it"):
        tuner(tiny_model()).run(path)
