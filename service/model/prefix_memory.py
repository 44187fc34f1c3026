"""PrefixMem: a memory vector for every SID token, looked up by hashes of the item's code prefix (arXiv 2606.00324).

For the token of level l (codes c_1..c_l known) the orders n = 1..min(l, N) each hash the first n codes with H heads
into tables of T_n rows; heads are concatenated, orders summed, and one linear map W_out leads to the LM's width:

    idx[n,h] = (XOR_{i<=n} c_i * p[i,h]) mod T_n        m_l = W_out * sum_n concat_h E[n,h][idx[n,h]]

Rows that no training item touched contribute nothing, so an unseen prefix speaks through its longest seen order.
The module knows nothing of any backbone: it returns vectors, the caller adds them to input embeddings. A gate and an
output bias are arms of training's experiments (`training/prefix_memory/extras.py`); the service has neither.

Shapes: T tokens, L levels, K codes, N orders, H heads, M memory width, D model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from service.model.semantic_ids import SidSpace


@dataclass(frozen=True, slots=True)
class PrefixMemoryConfig:
    """Sizes of the memory; ``rows[n]`` is T_{n+1}, ``inject_levels`` the 0-based levels whose tokens receive it.

    Raises:
        ValueError: the sizes do not fit each other.
    """

    levels: int
    codes: int
    heads: int
    width: int
    rows: tuple[int, ...]
    inject_levels: tuple[int, ...]
    seed: int = 17

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise ValueError(f"memory width {self.width} is not a multiple of {self.heads} heads")
        if not 1 <= len(self.rows) <= self.levels or min(self.rows) < 1:
            raise ValueError(f"orders must be 1..{self.levels} with at least one row each, got rows {self.rows}")
        if any(not 0 <= level < self.levels for level in self.inject_levels):
            raise ValueError(f"inject_levels {self.inject_levels} lie outside 0..{self.levels - 1}")

    @property
    def orders(self) -> int:
        """N_max: the longest prefix that is hashed."""
        return len(self.rows)

    @classmethod
    def sized(
        cls,
        space: SidSpace,
        *,
        orders: int,
        heads: int,
        width: int,
        max_rows: int,
        inject_levels: Sequence[int] | None = None,
        seed: int = 17,
    ) -> "PrefixMemoryConfig":
        """A configuration with T_n = min(max_rows, K^n): order 1 can touch only K rows, order 2 only K^2."""
        rows = tuple(min(max_rows, space.codes**n) for n in range(1, min(orders, space.levels) + 1))
        levels = tuple(range(space.levels)) if inject_levels is None else tuple(inject_levels)
        return cls(space.levels, space.codes, heads, width, rows, levels, seed)


def hash_multipliers(config: PrefixMemoryConfig) -> Tensor:
    """Large odd multipliers p[i,h], int64 [N, H], equal on every platform for a seed.

    Different per position and head; small primes would reach only a sixth of the rows.
    """
    generator = torch.Generator().manual_seed(config.seed)
    halves = torch.randint(0, 2**31, (2, config.orders, config.heads), generator=generator, dtype=torch.int64)
    return (halves[0] << 32) | (halves[1] << 1) | 1


class PrefixMemory(nn.Module):
    """The tables, W_out and the touch counts.

    ``tables[n]`` is float [H * T_n, M / H]; ``touched[n]`` int32 [H * T_n] counts training occurrences per row. With
    ``sparse_gradients`` the tables' gradients hold only the rows that were read.

    Attributes:
        gate: None, or what scales the memory [..., M] before W_out.
        output_bias: None, or per level the map [K, M] from the memory of the codes before it to a bias on its logits.
    """

    gate: nn.Module | None
    output_bias: nn.ParameterList | None

    def __init__(self, config: PrefixMemoryConfig, model_width: int) -> None:
        super().__init__()
        self.config = config
        head_width = config.width // config.heads
        self.tables = nn.ParameterList(nn.Parameter(torch.zeros(config.heads * t, head_width)) for t in config.rows)
        self.w_out = nn.Linear(config.width, model_width, bias=False)
        nn.init.zeros_(self.w_out.weight)
        self.gate = None
        self.output_bias = None
        self.sparse_gradients = False
        self.register_buffer("multipliers", hash_multipliers(config), persistent=False)
        for order, rows in enumerate(config.rows):
            self.register_buffer(f"touched_{order}", torch.zeros(config.heads * rows, dtype=torch.int32))

    def reset_tables(self, std: float, seed: int) -> None:
        """Fill the tables with N(0, std^2); W_out stays zero, so that training starts at the base model."""
        generator = torch.Generator().manual_seed(seed)
        for table in self.tables:
            table.data = torch.randn(table.shape, generator=generator) * std

    def attach(self, model_width: int, std: float = 0.0, seed: int = 0) -> None:
        """Give the memory a fresh W_out for another model: zero, or near zero with ``std``; the tables stay."""
        weight = torch.zeros(model_width, self.config.width)
        if std:
            weight.normal_(std=std, generator=torch.Generator().manual_seed(seed))
        like = self.w_out.weight
        self.w_out = nn.Linear(self.config.width, model_width, bias=False)
        self.w_out.weight.data = weight.to(like.device, like.dtype)

    def touched(self, order: int) -> Tensor:
        """Touch counts of 0-based ``order``, int32 [H * T]."""
        return self.get_buffer(f"touched_{order}")

    def row_indices(self, codes: Tensor) -> list[Tensor]:
        """Codes int [..., n] -> for each order <= n its table rows, int64 [..., H]."""
        indices: list[Tensor] = []
        mixed: Tensor | None = None
        heads = torch.arange(self.config.heads, device=codes.device)
        for order in range(min(self.config.orders, codes.shape[-1])):
            term = codes[..., order, None].long() * self.get_buffer("multipliers")[order]
            mixed = term if mixed is None else mixed ^ term
            rows = self.config.rows[order]
            indices.append(torch.remainder(mixed, rows) + heads * rows)
        return indices

    @torch.no_grad()
    def count_touches(self, codes_NL: Tensor, weights_N: Tensor | None = None) -> None:
        """Add the items' prefixes to the touch counts (an item counts once, or ``weights_N`` times)."""
        for order, rows_NH in enumerate(self.row_indices(codes_NL)):
            counts = torch.ones(rows_NH.shape[0], dtype=torch.int32) if weights_N is None else weights_N.int()
            self.touched(order).index_add_(0, rows_NH.flatten(), counts.repeat_interleave(self.config.heads))

    def order_vectors(self, codes: Tensor) -> list[Tensor]:
        """Codes [..., n] -> per order the concatenated head vectors [..., M]; untouched rows give zeros."""
        vectors: list[Tensor] = []
        for order, rows in enumerate(self.row_indices(codes)):
            vector = F.embedding(rows, self.tables[order], sparse=self.sparse_gradients)
            seen = (self.touched(order)[rows] > 0).to(vector.dtype)
            vectors.append((vector * seen[..., None]).flatten(-2))
        return vectors

    def item_memory(self, codes: Tensor) -> Tensor:
        """Code prefixes [..., n] -> memory before W_out for each of their n positions, [..., n, M]."""
        running: Tensor | None = None
        per_level: list[Tensor] = []
        vectors = self.order_vectors(codes)
        for level in range(codes.shape[-1]):
            if level < len(vectors):
                running = vectors[level] if running is None else running + vectors[level]
            assert running is not None
            per_level.append(running)
        return torch.stack(per_level, -2)

    def item_embeddings(self, codes: Tensor) -> Tensor:
        """What to add to the input embeddings of code prefixes [..., n]: [..., n, D], zero where not injected."""
        vectors = self._project(self.item_memory(codes))
        return vectors * self._injected(codes.shape[-1])[:, None]

    def token_embeddings(self, codes_TL: Tensor, known_TL: Tensor, level_T: Tensor) -> Tensor:
        """Vectors for single tokens whose item prefix was looked back for, [T, D].

        ``codes_TL`` holds the prefix codes by level, ``known_TL`` (bool) which of them are the current item's,
        ``level_T`` the token's level (-1: no SID token, gives zeros). An order counts only if all its codes are known.
        """
        vectors = self._project(self._token_memory(codes_TL, known_TL, level_T))
        injected_T = self._injected(self.config.levels)[level_T.clamp(min=0)] * (level_T >= 0)
        return vectors * injected_T[:, None].to(vectors.dtype)

    def next_code_bias(self, codes: Tensor) -> Tensor | None:
        """What the prefixes int [..., n] add to the logits of level n < L, [..., K]; None without an output bias."""
        level = codes.shape[-1]
        if self.output_bias is None or level == 0:
            return None
        return F.linear(self.item_memory(codes)[..., -1, :], self.output_bias[level - 1])

    def _token_memory(self, codes_TL: Tensor, known_TL: Tensor, level_T: Tensor) -> Tensor:
        """The memory of single tokens before W_out, [T, M]."""
        total: Tensor | None = None
        complete_T = level_T >= 0
        for order, vector_TM in enumerate(self.order_vectors(codes_TL)):
            complete_T = complete_T & known_TL[:, order]
            masked = vector_TM * complete_T[:, None].to(vector_TM.dtype)
            total = masked if total is None else total + masked
        assert total is not None
        return total

    def _project(self, memory: Tensor) -> Tensor:
        vectors: Tensor = self.w_out(memory if self.gate is None else self.gate(memory))
        return vectors

    def _injected(self, levels: int) -> Tensor:
        weight = self.w_out.weight
        mask = torch.zeros(self.config.levels, dtype=weight.dtype, device=weight.device)
        mask[list(self.config.inject_levels)] = 1
        return mask[:levels]


def current_item_prefix(space: SidSpace, token_T: Tensor, previous_TP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From a token and its predecessors to the prefix of the item it belongs to.

    Args:
        space: the SID token space.
        token_T: token ids, int [T].
        previous_TP: ids of the tokens 1..P places before, int [T, P], P >= L-1; -1 where there is none.

    Returns:
        ``(codes_TL, known_TL, level_T)`` as ``PrefixMemory.token_embeddings`` takes them.
    """
    level_T, code_T = space.level_and_code(token_T)
    previous_level, previous_code = space.level_and_code(previous_TP)
    codes, known = [], []
    for level in range(space.levels):
        distance_T = level_T - level
        index = (distance_T - 1).clamp(0, previous_TP.shape[1] - 1)[:, None]
        is_self = distance_T == 0
        is_before = (distance_T > 0) & (previous_level.gather(1, index)[:, 0] == level)
        codes.append(torch.where(is_self, code_T, previous_code.gather(1, index)[:, 0] * is_before))
        known.append(is_self | is_before)
    return torch.stack(codes, 1), torch.stack(known, 1), level_T
