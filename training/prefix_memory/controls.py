"""Controls for the prefix memory: what hashing, several orders and a table each contribute.

``full_prefix`` hashes only the whole prefix (one order a level), ``exact`` has a row for every prefix that exists and
no hash, ``transformer`` reads the prefix with a small causal encoder of as many parameters. They stand where a
`PrefixMemory` stands in training and evaluation; the service has only the hashed one, so `export.py` refuses them.

Shapes: N items, L levels, T tokens, M memory width, R rows, d inner width.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig

LAYERS, HEADS = 2, 4


class FullPrefixMemory(PrefixMemory):
    """A token's memory is the row of its whole prefix; shorter prefixes do not speak."""

    def item_memory(self, codes: Tensor) -> Tensor:
        """See `PrefixMemory.item_memory`; levels behind the last order repeat it."""
        vectors = self.order_vectors(codes)
        return torch.stack([vectors[min(n, len(vectors) - 1)] for n in range(codes.shape[-1])], -2)

    def _token_memory(self, codes_TL: Tensor, known_TL: Tensor, level_T: Tensor) -> Tensor:
        return _at_level(self.item_memory(codes_TL), known_TL, level_T)


class ExactPrefixMemory(PrefixMemory):
    """A row for every prefix of the items that it is made for; row 0 of every table stands for all other prefixes.

    Args:
        config: as of the hashed memory; its rows and heads are replaced, its orders stay.
        codes_NL: the items' SIDs, int64.
        model_width: see `PrefixMemory`.
    """

    def __init__(self, config: PrefixMemoryConfig, codes_NL: Tensor, model_width: int) -> None:
        keys = _prefix_keys(codes_NL, config.codes, config.orders)
        rows = tuple(len(key_R) + 1 for key_R in keys)
        super().__init__(replace(config, heads=1, rows=rows), model_width)
        for order, key_R in enumerate(keys):
            self.register_buffer(f"keys_{order}", key_R)

    def row_indices(self, codes: Tensor) -> list[Tensor]:
        """See `PrefixMemory.row_indices`; one head."""
        indices: list[Tensor] = []
        row = torch.zeros(codes.shape[:-1], dtype=torch.int64, device=codes.device)
        for order in range(min(self.config.orders, codes.shape[-1])):
            key_R = self.get_buffer(f"keys_{order}")
            row = _find(key_R, _key(row, codes[..., order], self.config.codes), known=row > 0 if order else None)
            indices.append(row[..., None])
        return indices


class TransformerMemory(PrefixMemory):
    """A causal transformer over the codes of one item instead of tables, with at most as many parameters as they have.

    Raises:
        ValueError: the tables are smaller than the smallest encoder.
    """

    def __init__(self, config: PrefixMemoryConfig, model_width: int) -> None:
        budget = sum(config.heads * rows * (config.width // config.heads) for rows in config.rows)
        super().__init__(replace(config, rows=(1,)), model_width)
        self.config, self.tables = config, nn.ParameterList()
        width = _inner_width(config, budget)
        self.codes = nn.Embedding(config.levels * config.codes, width)
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.to_memory = nn.Linear(width, config.width)

    def reset_tables(self, std: float, seed: int) -> None:
        """Fill the code embeddings; the encoder keeps the library's initialisation."""
        generator = torch.Generator().manual_seed(seed)
        self.codes.weight.data = torch.randn(self.codes.weight.shape, generator=generator) * std

    @torch.no_grad()
    def count_touches(self, codes_NL: Tensor, weights_N: Tensor | None = None) -> None:
        """An encoder has no rows to count; it answers for prefixes that it never met."""

    def item_memory(self, codes: Tensor) -> Tensor:
        """See `PrefixMemory.item_memory`."""
        length = codes.shape[-1]
        row = codes.long() + torch.arange(length, device=codes.device) * self.config.codes
        hidden = self.codes(row.reshape(-1, length))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=codes.device, dtype=hidden.dtype)
        memory = self.to_memory(self.norm(self.encoder(hidden, mask=mask, is_causal=True)))
        return cast(Tensor, memory).view(*codes.shape, -1)

    def _token_memory(self, codes_TL: Tensor, known_TL: Tensor, level_T: Tensor) -> Tensor:
        return _at_level(self.item_memory(codes_TL), known_TL, level_T)


def num_table_parameters(memory: PrefixMemory) -> int:
    """Parameters that read the prefix: all but W_out, gate and output bias."""
    return sum(
        parameter.numel()
        for name, parameter in memory.named_parameters()
        if not name.startswith(("w_out", "gate", "output_bias"))
    )


def _at_level(memory_TLM: Tensor, known_TL: Tensor, level_T: Tensor) -> Tensor:
    """The vector at each token's own level, zero unless all codes up to it are known, [T, M]."""
    index_T = level_T.clamp(min=0)
    complete_T = known_TL.long().cumprod(1).gather(1, index_T[:, None])[:, 0] * (level_T >= 0)
    vector_TM = memory_TLM[torch.arange(len(index_T), device=index_T.device), index_T]
    return vector_TM * complete_T[:, None].to(vector_TM.dtype)


def _key(parent: Tensor, code: Tensor, codes: int) -> Tensor:
    # a prefix by its parent's row and its own code, so that no key outgrows int64
    return parent * codes + code.long()


def _find(key_R: Tensor, key: Tensor, known: Tensor | None) -> Tensor:
    """1-based places of keys in the sorted ``key_R``; 0 where there is none or the parent is not ``known``."""
    place = torch.searchsorted(key_R, key).clamp(max=len(key_R) - 1)
    found = key_R[place] == key
    return (place + 1) * (found if known is None else found & known)


def _prefix_keys(codes_NL: Tensor, codes: int, orders: int) -> list[Tensor]:
    keys: list[Tensor] = []
    row_N = torch.zeros(len(codes_NL), dtype=torch.int64)
    for order in range(orders):
        key_N = _key(row_N, codes_NL[:, order], codes)
        key_R, place_N = torch.unique(key_N, return_inverse=True)
        keys.append(key_R)
        row_N = place_N + 1
    return keys


def _inner_width(config: PrefixMemoryConfig, budget: int) -> int:
    """The largest inner width (a multiple of the heads) whose encoder stays within ``budget`` parameters."""

    def size(d: int) -> int:
        layer = 12 * d * d + 13 * d
        return config.levels * config.codes * d + LAYERS * layer + 2 * d + (d + 1) * config.width

    width = HEADS
    if size(width) > budget:
        raise ValueError(f"tables of {budget} parameters are smaller than the smallest encoder ({size(width)})")
    while size(width + HEADS) <= budget:
        width += HEADS
    return width
