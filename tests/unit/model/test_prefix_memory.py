"""The prefix memory reads the rows its equation names, whole items and single tokens alike."""

import itertools

import pytest
import torch

from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig, current_item_prefix, hash_multipliers
from service.model.semantic_ids import SidSpace

SPACE = SidSpace(levels=3, codes=8, first_token_id=100)


def memory(inject: tuple[int, ...] | None = None) -> PrefixMemory:
    config = PrefixMemoryConfig.sized(SPACE, orders=3, heads=2, width=8, max_rows=50, inject_levels=inject)
    made = PrefixMemory(config, model_width=6)
    made.reset_tables(1.0, seed=0)
    torch.nn.init.normal_(made.w_out.weight, generator=torch.Generator().manual_seed(0))
    return made


def all_sids() -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(8), repeat=3)))


def test_row_indices_are_the_paper_s_xor_of_products_modulo_the_table() -> None:
    made = memory()
    multipliers = hash_multipliers(made.config).tolist()
    codes = [3, 7, 5]
    for order, rows in enumerate(made.row_indices(torch.tensor(codes))):
        for head in range(2):
            mixed = 0
            for position in range(order + 1):
                mixed ^= (codes[position] * multipliers[position][head]) & (2**64 - 1)
            signed = mixed - 2**64 if mixed >= 2**63 else mixed
            table = made.config.rows[order]
            assert int(rows[head]) == signed % table + head * table


def test_multipliers_are_large_odd_and_distinct() -> None:
    values = hash_multipliers(memory().config).flatten().tolist()
    assert all(value % 2 == 1 and value > 2**32 for value in values)
    assert len(set(values)) == len(values)


def test_tables_are_sized_per_order() -> None:
    assert memory().config.rows == (8, 50, 50)


def test_the_first_order_never_collides() -> None:
    rows = memory().row_indices(torch.arange(8)[:, None])[0]
    assert all(len(set(rows[:, head].tolist())) == 8 for head in range(2))


def test_untouched_prefixes_add_nothing_beyond_their_longest_seen_order() -> None:
    made = memory()
    made.count_touches(torch.tensor([[1, 2, 3]]))
    seen, unseen = made.item_memory(torch.tensor([[1, 2, 3]])), made.item_memory(torch.tensor([[1, 4, 4]]))
    assert torch.equal(seen[0, 0], unseen[0, 0])
    fresh = [made.row_indices(torch.tensor([1, 4, 4]))[order] for order in (1, 2)]
    if all(int(made.touched(order + 1)[rows].sum()) == 0 for order, rows in enumerate(fresh)):
        assert torch.equal(unseen[0, 2], unseen[0, 0])


def test_a_memory_that_saw_nothing_is_silent() -> None:
    assert float(memory().item_embeddings(all_sids()).detach().abs().max()) == 0.0


def test_single_tokens_looked_back_for_equal_whole_items() -> None:
    made = memory()
    sids = all_sids()
    made.count_touches(sids[::2])
    tokens = torch.tensor([token for sid in sids.tolist() for token in SPACE.token_ids(sid)])
    previous = torch.stack([torch.cat([torch.full((n,), -1), tokens[:-n]]) for n in (1, 2)], 1)
    by_token = made.token_embeddings(*current_item_prefix(SPACE, tokens, previous))
    assert torch.equal(by_token.view(-1, 3, 6), made.item_embeddings(sids))


def test_text_tokens_and_broken_items_get_no_foreign_memory() -> None:
    made = memory()
    made.count_touches(all_sids())
    token = torch.tensor([5, SPACE.token_ids((1, 2))[1]])
    previous = torch.tensor([[SPACE.token_ids((1,))[0], -1], [7, -1]])
    assert float(made.token_embeddings(*current_item_prefix(SPACE, token, previous)).detach().abs().max()) == 0.0


def test_only_injected_levels_receive_memory() -> None:
    made = memory(inject=(1,))
    made.count_touches(all_sids())
    added = made.item_embeddings(all_sids()[:5]).detach().abs().amax(-1)
    assert torch.all(added[:, [0, 2]] == 0)
    assert torch.all(added[:, 1] > 0)


def test_training_starts_at_the_base_model() -> None:
    fresh = PrefixMemory(memory().config, 6)
    fresh.reset_tables(1.0, 0)
    fresh.count_touches(all_sids())
    assert float(fresh.item_embeddings(all_sids()).detach().abs().max()) == 0.0


@pytest.mark.parametrize("bad", [{"heads": 3}, {"rows": ()}, {"inject_levels": (3,)}])
def test_sizes_that_do_not_fit_are_refused(bad: dict[str, object]) -> None:
    good = {"levels": 3, "codes": 8, "heads": 2, "width": 8, "rows": (8, 8), "inject_levels": (0,)}
    with pytest.raises(ValueError, match=r"multiple|orders|inject_levels"):
        PrefixMemoryConfig(**(good | bad))  # type: ignore[arg-type]


def reached(multipliers: torch.Tensor, rows: int) -> float:
    """The share of a table's rows that random prefixes of 4 codes below 2,048 fall on, six prefixes to a row."""
    codes_NP = torch.randint(0, 2048, (6 * rows, 4), generator=torch.Generator().manual_seed(0))
    mixed = torch.zeros(len(codes_NP), dtype=torch.int64)
    for position in range(4):
        mixed ^= codes_NP[:, position] * multipliers[position]
    return len(set(torch.remainder(mixed, rows).tolist())) / rows


def test_the_multipliers_reach_the_whole_table_where_small_primes_reach_a_corner() -> None:
    config = PrefixMemoryConfig.sized(SidSpace(4, 2048, 0), orders=4, heads=2, width=8, max_rows=500_000)
    rows = config.rows[3]
    assert rows == 500_000
    for head in range(2):
        assert reached(hash_multipliers(config)[:, head], rows) >= 0.99
    # 2047 * 43 has 17 bits: no larger table is ever filled beyond 2**17 rows
    assert reached(torch.tensor([31, 37, 41, 43]), rows) <= 2**17 / rows < 0.27


def test_two_prefixes_rarely_share_the_rows_of_all_heads() -> None:
    config = PrefixMemoryConfig.sized(SidSpace(4, 2048, 0), orders=4, heads=4, width=8, max_rows=100_000)
    made = PrefixMemory(config, 1)
    codes_NL = torch.randint(0, 2048, (50_000, 4), generator=torch.Generator().manual_seed(0))
    prefixes = {tuple(sid) for sid in codes_NL.tolist()}
    assert len({tuple(rows) for rows in made.row_indices(codes_NL)[3].tolist()}) == len(prefixes)


def test_the_sizes_of_the_paper_are_possible_and_small_orders_take_only_what_they_can_touch() -> None:
    config = PrefixMemoryConfig.sized(SidSpace(5, 2048, 0), orders=4, heads=4, width=256, max_rows=2_000_000)
    assert config.rows == (2048, 2_000_000, 2_000_000, 2_000_000)


def test_sparse_gradients_hold_only_the_rows_that_were_read() -> None:
    made, dense = memory(), memory()
    made.sparse_gradients = True
    for each in (made, dense):
        each.count_touches(torch.tensor([[1, 2, 3]]))
        each.item_embeddings(torch.tensor([[1, 2, 3]])).sum().backward()  # type: ignore[no-untyped-call]
    for table, twin in zip(made.tables, dense.tables, strict=True):
        assert table.grad is not None
        assert table.grad.is_sparse
        assert table.grad._nnz() == 2
        assert twin.grad is not None
        torch.testing.assert_close(table.grad.to_dense(), twin.grad)
