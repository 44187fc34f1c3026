"""SASRec learns an order that popularity cannot know, sees no future, and covers every interaction."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from training.baselines import Popularity
from training.data import Example, Split
from training.metrics import hits, target_ranks
from training.sasrec import SasRec, SasRecOptions, _windows, train_sasrec

ITEMS = 20
SMALL = SasRecOptions(width=16, layers=1, heads=2, dropout=0.1, max_items=8, batch_size=4, lr=1e-2, max_epochs=80)


def walk(user: int) -> tuple[int, ...]:
    """Everybody goes from item to item in steps of three."""
    return tuple((user + 3 * place) % ITEMS for place in range(9))


def split() -> Split:
    walks = {f"u{user}": walk(user) for user in range(ITEMS)}
    train = {user: sequence[:-2] for user, sequence in walks.items()}
    valid = tuple(Example(user, sequence[:-2], sequence[-2]) for user, sequence in walks.items())
    return Split(train, valid, tuple(Example(user, sequence[:-1], sequence[-1]) for user, sequence in walks.items()))


def recall(scorer: SasRec | Popularity) -> float:
    tests = split().test
    ranked = [np.argsort(-scorer.scores(example.history), kind="stable")[:1].tolist() for example in tests]
    return float(hits(target_ranks(ranked, [example.target for example in tests]), 1).mean())


def test_it_learns_the_walk() -> None:
    model = train_sasrec(split(), ITEMS, SMALL, seed=0)
    assert recall(model) > 0.9
    assert recall(Popularity(np.ones(ITEMS, np.int64))) < 0.2


def test_a_position_sees_nothing_behind_it() -> None:
    torch.manual_seed(0)
    model = SasRec(ITEMS, SMALL).train(False)
    one, other = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 2, 3, 9, 0]])
    assert torch.allclose(model(one)[:, :3], model(other)[:, :3], atol=1e-5)
    assert not torch.allclose(model(one)[:, 3], model(other)[:, 3], atol=1e-3)


def test_the_same_seed_trains_the_same_model() -> None:
    few = SasRecOptions(width=16, layers=1, max_items=8, max_epochs=5)
    one, other = (train_sasrec(split(), ITEMS, few, seed=1) for _ in range(2))
    assert np.array_equal(one.scores((1, 2)), other.scores((1, 2)))


def test_windows_hold_every_step_of_a_long_sequence() -> None:
    sequence = tuple(range(100))
    for seed in range(20):
        windows = _windows(sequence, 9, np.random.default_rng(seed))
        steps = {(a, b) for window in windows for a, b in zip(window, window[1:], strict=False)}
        assert steps == {(n, n + 1) for n in range(99)}
        assert max(map(len, windows)) <= 9


def test_scores_are_those_of_the_paper_s_formulas() -> None:
    """Causal softmax attention over item plus place, head by head and position by position, in float64."""
    torch.manual_seed(3)
    model = SasRec(ITEMS, SMALL).train(False).double()
    row_T = torch.tensor([4, 9, 1, 7])
    (block,) = model.blocks.layers
    assert isinstance(block, nn.TransformerEncoderLayer)
    x_TD = model.item.weight[row_T] + model.position.weight[: len(row_T)]
    normed_TD = block.norm1(x_TD)
    weight, bias = block.self_attn.in_proj_weight, block.self_attn.in_proj_bias
    query_TD, key_TD, value_TD = (normed_TD @ weight.T + bias).chunk(3, -1)
    mixed_TD, width = torch.zeros_like(x_TD), SMALL.width // SMALL.heads
    for head in range(SMALL.heads):
        part = slice(head * width, (head + 1) * width)
        for now in range(len(row_T)):
            score_t = key_TD[: now + 1, part] @ query_TD[now, part] / width**0.5
            mixed_TD[now, part] = score_t.softmax(0) @ value_TD[: now + 1, part]
    x_TD = x_TD + block.self_attn.out_proj(mixed_TD)
    x_TD = x_TD + block.linear2(F.gelu(block.linear1(block.norm2(x_TD))))
    expected_TN = model.norm(x_TD) @ model.item.weight[1:].T
    torch.testing.assert_close(model(row_T[None])[0], expected_TN, atol=1e-9, rtol=0)
