"""Ragged beams over shared prompts attend exactly as each beam alone over its whole sequence would."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from service.engine import shared_prefix
from service.engine.shared_prefix import BeamKV, similar_neighbours

HEADS, GROUP, WIDTH, LEVELS, LAYERS = 2, 3, 4, 3, ("first", "second")


class Prompts:
    """Random keys and values [H, P, D] per layer and user; behind a prompt's end the memory holds NaN."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.pairs = {layer: [torch.randn(2, HEADS, length, WIDTH) for length in lengths] for layer in LAYERS}

    def __call__(self, layer: str, users: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        both = torch.full((2, len(users), HEADS, length, WIDTH), float("nan"))
        for place, user in enumerate(users):
            both[:, place, :, : self.lengths[user]] = self.pairs[layer][user]
        return both[0].flatten(0, 1).transpose(1, 2).contiguous(), both[1].flatten(0, 1)


def alone(query_HGD: Tensor, prompt: Tensor, own: Sequence[Tensor]) -> Tensor:
    """Attention of one beam over its prompt and its own rows, each [2, H, D]."""
    key, value = torch.cat([prompt, torch.stack(list(own), 2)], 2)
    attended: Tensor = torch.softmax(query_HGD @ key.transpose(1, 2), -1) @ value
    return attended


def descend(counts: Sequence[int], before: Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """User and a random parent row for each of ``counts[u]`` rows per user."""
    user_R = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    if before is None:
        return user_R, user_R
    first = [0, *itertools.accumulate(before)]
    return user_R, torch.tensor([first[u] + int(torch.randint(before[u], ())) for u in user_R.tolist()])


@settings(max_examples=40, deadline=None)
@given(
    users=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=5),
    cost=st.sampled_from([0, 20, 10**9]),
    seed=st.integers(0, 2**31),
)
def test_every_beam_attends_as_if_it_were_alone(users: list[tuple[int, int]], cost: int, seed: int) -> None:
    torch.manual_seed(seed)
    widths, lengths = [width for width, _ in users], [length for _, length in users]
    prompts = Prompts(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_prefix, "GROUP_COST", cost)
        kv = BeamKV(LAYERS, widths, lengths, prompts)
    before: list[int] | None = None
    owned: list[dict[str, list[Tensor]]] = []
    for _ in range(LEVELS):
        counts = [int(torch.randint(width + 1, ())) for width in widths]
        counts = counts if before is None else [n if b else 0 for n, b in zip(counts, before, strict=True)]
        if not sum(counts):
            return
        user_R, parent_R = descend(counts, before)
        owned = [{layer: list(owned[p][layer]) if before else [] for layer in LAYERS} for p in parent_R.tolist()]
        kv.advance(user_R, parent_R)
        for layer in LAYERS:
            query = torch.randn(len(user_R), HEADS, GROUP, WIDTH)
            pair = torch.randn(2, len(user_R), HEADS, WIDTH)
            found = kv.attend(layer, query, pair[0], pair[1])
            for row, user in enumerate(user_R.tolist()):
                owned[row][layer].append(pair[:, row])
                expected = alone(query[row], prompts.pairs[layer][user], owned[row][layer])
                torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-4)
        before = counts


def test_similar_users_share_a_group_and_unlike_ones_do_not() -> None:
    assert similar_neighbours([20] * 8, [160] * 8) == [range(8)]
    assert similar_neighbours([20, 20, 512], [100, 120, 800]) == [range(2), range(2, 3)]
    assert similar_neighbours([1], [1]) == [range(1)]


@given(st.lists(st.tuples(st.integers(1, 512), st.integers(1, 800)), min_size=1, max_size=12))
def test_groups_cover_all_users_in_order(users: list[tuple[int, int]]) -> None:
    groups = similar_neighbours([width for width, _ in users], [length for _, length in users])
    assert [user for group in groups for user in group] == list(range(len(users)))
