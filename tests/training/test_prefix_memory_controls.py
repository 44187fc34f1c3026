"""Controls differ from the hashed memory in what they control for; token by token they say the same as item-wise."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig, current_item_prefix
from service.model.semantic_ids import SidSpace
from training.errors import RecipeError, TrainingError
from training.prefix_memory.controls import num_table_parameters
from training.prefix_memory.extras import add_gate, add_output_bias
from training.prefix_memory.registry import build, check_servable, kind_of

SPACE = SidSpace(3, 8, 100)
KINDS = ("hashed", "exact", "full_prefix", "transformer")


def codes() -> NDArray[np.int64]:
    every = np.array(list(itertools.product(range(8), repeat=3)))
    return np.random.default_rng(0).permutation(every)[:60]


def memory(kind: str, *, orders: int = 3, rows: int = 4096, width: int = 32) -> PrefixMemory:
    torch.manual_seed(0)
    config = PrefixMemoryConfig.sized(SPACE, orders=orders, heads=2, width=width, max_rows=rows)
    made = build(kind, config, codes())
    made.reset_tables(1.0, 0)
    made.count_touches(torch.from_numpy(codes()))
    made.attach(6, 0.1)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_single_tokens_get_what_whole_items_get(kind: str) -> None:
    made = memory(kind)
    seen = torch.from_numpy(codes()[:5])
    token_T = (SPACE.rows(seen) + SPACE.first_token_id).flatten()
    padded_T = torch.cat([torch.full((2,), -1), token_T])
    previous_TP = torch.stack([padded_T[1 : 1 + len(token_T)], padded_T[: len(token_T)]], 1)
    found = made.token_embeddings(*current_item_prefix(SPACE, token_T, previous_TP))
    torch.testing.assert_close(found, made.item_embeddings(seen).flatten(0, 1), atol=1e-5, rtol=1e-5)
    assert found.abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_later_codes_never_reach_earlier_tokens(kind: str) -> None:
    made = memory(kind)
    seen = torch.from_numpy(codes()[:1])
    changed = seen.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 8
    torch.testing.assert_close(made.item_memory(seen)[:, :2], made.item_memory(changed)[:, :2])
    torch.testing.assert_close(made.item_memory(seen)[:, :2], made.item_memory(seen[:, :2]))


def test_exact_has_a_row_for_every_prefix_and_no_collision() -> None:
    made, seen = memory("exact"), codes()
    for order, row_N1 in enumerate(made.row_indices(torch.from_numpy(seen))):
        prefixes = np.unique(seen[:, : order + 1], axis=0)
        assert made.config.rows[order] == len(prefixes) + 1
        assert len(set(row_N1.flatten().tolist())) == len(prefixes)
        assert int(row_N1.min()) > 0


def test_exact_leaves_prefixes_without_an_item_to_their_longest_known_part() -> None:
    made, seen = memory("exact"), codes()
    stranger = next(
        sid
        for sid in itertools.product(range(8), repeat=3)
        if (seen[:, :2] == sid[:2]).all(1).any() and not (seen == sid).all(1).any()
    )
    said = made.item_memory(torch.tensor([stranger]))[0]
    assert torch.equal(said[1], said[2])
    assert not torch.equal(said[0], said[1])


def test_full_prefix_says_nothing_of_shorter_prefixes() -> None:
    hashed, full = memory("hashed"), memory("full_prefix")
    seen = torch.from_numpy(codes())
    orders = hashed.order_vectors(seen)
    torch.testing.assert_close(full.item_memory(seen)[:, 2], orders[2])
    torch.testing.assert_close(hashed.item_memory(seen)[:, 2], sum(orders))


def test_the_transformer_has_at_most_as_many_parameters_and_hardly_fewer() -> None:
    tables = num_table_parameters(memory("hashed", width=64))
    assert 0.85 * tables < num_table_parameters(memory("transformer", width=64)) <= tables


def test_tables_too_small_for_any_encoder_are_named() -> None:
    with pytest.raises(RecipeError, match=r"prefix_memory\.max_rows"):
        memory("transformer", orders=1, rows=2, width=2)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_hashed_memory_is_servable(kind: str) -> None:
    made = memory(kind)
    assert kind_of(made) == kind
    if kind == "hashed":
        check_servable(made)
        check_servable(None)
        return
    with pytest.raises(TrainingError, match=f"kind '{kind}'.*service cannot run it"):
        check_servable(made)


def test_gate_and_output_bias_are_not_servable_and_start_without_a_voice() -> None:
    plain, gated, biased = memory("hashed"), memory("hashed"), memory("hashed")
    seen = torch.from_numpy(codes())
    add_gate(gated)
    torch.testing.assert_close(
        gated.item_embeddings(seen), plain.item_embeddings(seen) * torch.sigmoid(torch.tensor(4.0))
    )
    add_output_bias(biased, SPACE.codes)
    assert biased.next_code_bias(seen[:, :0]) is None
    assert plain.next_code_bias(seen[:, :1]) is None
    bias = biased.next_code_bias(seen[:, :2])
    assert bias is not None
    assert bias.shape == (60, 8)
    assert not bias.any()
    for made, name in ((gated, "gate"), (biased, "output_bias")):
        with pytest.raises(TrainingError, match=f"prefix_memory.{name} is for experiments"):
            check_servable(made)
