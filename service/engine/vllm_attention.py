"""Attention for the in-worker beam on vLLM's backends: their own kernels outside the beam, shared prompts inside.

A beam step runs the same layers under a forward context whose metadata is a `BeamKV`; that is how an implementation
tells the two apart. The prompt's keys and values are read out of vLLM's paged cache once per search. The CPU cache is
packed differently per instruction set, so where each element lies is learned once by writing a probe.

Shapes: R rows (live beams), U users, H key-value heads, G queries per key-value head, X = U * H, P prompt tokens, D
head width, S block size.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from service.engine.shared_prefix import BeamKV
from service.engine.vllm_interfaces import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    write_cpu_cache,
)
from service.errors import VersionError


def attend_beams(
    impl: Any, layer: Any, query: Tensor, key: Tensor, value: Tensor, beam: BeamKV, output: Tensor
) -> Tensor:
    """One layer of a beam step; rows in vLLM's flat layout, written to ``output``."""
    rows, heads, width = query.shape[0], impl.num_kv_heads, impl.head_size
    query_RHGD = query.view(rows, heads, impl.num_queries_per_kv, width) * impl.scale
    shape = (rows, heads, width)
    attended = beam.attend(layer.layer_name, query_RHGD, key.view(shape), value.view(shape))
    return output.copy_(attended.reshape(output.shape))


class BeamCPUImpl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """vLLM's CPU attention, and shared prompts when the metadata is a `BeamKV`."""

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """As the base class; beam rows never touch ``kv_cache``."""
        if isinstance(attn_metadata, BeamKV):
            return attend_beams(self, layer, query, key, value, attn_metadata, output)
        result: Tensor = super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        return result


class BeamCPUBackend(CPUAttentionBackend):  # type: ignore[misc]
    """The backend that vLLM is told to use on CPU."""

    @staticmethod
    def get_impl_cls() -> type[BeamCPUImpl]:
        """The implementation above."""
        return BeamCPUImpl


class PagedPrompts:
    """Reads prompts' keys and values out of the paged cache; a `shared_prefix.PromptReader`.

    Args:
        layers: vLLM's attention layers by name.
        block_table: int [users, blocks], each user's blocks in order.
        block_size: tokens per block.
    """

    def __init__(self, layers: dict[str, Any], block_table: Tensor, block_size: int) -> None:
        self._layers = layers
        self._table = block_table.long()
        self._block_size = block_size

    def __call__(self, layer: str, users: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """The users' keys [X, D, P] and values [X, P, D] of a layer for ``length`` tokens each."""
        blocks = -(-length // self._block_size)
        table = self._table[users[0] : users[-1] + 1, :blocks]
        attention = self._layers[layer]
        read = _read_cpu if attention.kv_cache.device.type == "cpu" else _read_flash
        key, value = read(attention, table)
        return key[..., :length].contiguous(), value[:, :length].contiguous()


def _read_cpu(layer: Any, table: Tensor) -> tuple[Tensor, Tensor]:
    cache = layer.kv_cache
    blocks, heads, size, double = cache.shape
    width = double // 2
    places = cache_places(layer.isa, size, heads, width, cache.dtype)
    keys, values = cache.view(blocks, heads, 2, size * width).unbind(2)
    users, count = table.shape
    key = _ordered(keys[table], places[0].T).view(users, count, heads, width, size)
    value = _ordered(values[table], places[1]).view(users, count, heads, size, width)
    key_XDP = key.permute(0, 2, 3, 1, 4).reshape(users * heads, width, count * size)
    return key_XDP, value.permute(0, 2, 1, 3, 4).reshape(users * heads, count * size, width)


def _read_flash(layer: Any, table: Tensor) -> tuple[Tensor, Tensor]:
    cache = layer.kv_cache[table]  # [U, blocks, H, S, 2 D]
    users, count, heads, size, double = cache.shape
    both = cache.permute(0, 2, 1, 3, 4).reshape(users * heads, count * size, double)
    key_XPD, value_XPD = both.chunk(2, -1)
    return key_XPD.transpose(1, 2), value_XPD


def _ordered(packed: Tensor, place: Tensor) -> Tensor:
    """Elements of the last axis by their place; as they are where the cache keeps them in order."""
    wanted = place.reshape(-1)
    return packed if _is_ordered(wanted) else packed[..., wanted]


def _is_ordered(place: Tensor) -> bool:
    return bool(torch.equal(place, torch.arange(place.numel())))


@cache
def cache_places(isa: str, block_size: int, heads: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Where element (token, dim) of a key and of a value lies inside one head's block, int64 [S, D] each.

    Writes each bit of every element's number as 0 or 1 and reads the numbers back from where they landed.

    Raises:
        VersionError: the probe is no bijection, so the cache is packed in a way this code does not know.
    """
    size = block_size * width
    number = torch.arange(size).view(block_size, 1, width)
    found = torch.zeros(2, size, dtype=torch.int64)
    for bit in range(max(1, (size - 1).bit_length())):
        plane = ((number >> bit) & 1).to(dtype).expand(block_size, heads, width).contiguous()
        for side, half in enumerate(write_cpu_cache(plane, isa)):
            found[side] |= (half[0, 0].reshape(-1).float() > 0.5).long() << bit
    places = torch.argsort(found, dim=1)
    if not torch.equal(found.gather(1, places), torch.arange(size).expand(2, -1)):
        raise VersionError(f"vLLM packs its CPU cache ({isa}, {dtype}) in an unknown way; use the pinned version")
    return places[0].view(block_size, width), places[1].view(block_size, width)
