"""Attention for the in-worker beam on vLLM's CPU backend.

All beams of a user share the prompt's keys and values, which lie in vLLM's paged cache; a beam owns only a few rows
of its own. One matrix product covers all beams against the prompt, a small one each beam's own rows, one softmax
joins them. The CPU cache is packed differently per instruction set, so where each element lies is learned once by
writing a probe. Outside the beam vLLM's own kernel runs unchanged.

Shapes: U users, W beams, R = U * W rows, H key-value heads, G queries per key-value head, P prompt tokens, l own rows,
D head width, S block size.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from service.errors import VersionError


@dataclass(slots=True)
class BeamKV:
    """Keys and values of one beam search.

    ``prompt`` maps a layer to the prompts' keys [U*H, D, P] and values [U*H, P, D].
    ``padding_UP`` is additive (0 or -inf), None when all prompts are equally long; ``own`` maps a layer to its
    [R, l, H, D] keys and values.
    """

    users: int
    width: int
    prompt: dict[str, tuple[Tensor, Tensor]]
    padding_UP: Tensor | None
    own: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def append(self, layer: str, key_RHD: Tensor, value_RHD: Tensor) -> tuple[Tensor, Tensor]:
        """Add one row per beam and return all own rows."""
        new = key_RHD[:, None], value_RHD[:, None]
        if layer in self.own:
            old = self.own[layer]
            self.own[layer] = torch.cat([old[0], new[0]], 1), torch.cat([old[1], new[1]], 1)
        else:
            self.own[layer] = new[0].clone(), new[1].clone()
        return self.own[layer]

    def reorder(self, row_R: Tensor) -> None:
        """Make beam r continue from old beam ``row_R[r]``."""
        for layer, (key, value) in self.own.items():
            self.own[layer] = key[row_R], value[row_R]


class BeamCPUImpl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """vLLM's CPU attention, plus shared-prefix attention when the metadata is a `BeamKV`."""

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
        if not isinstance(attn_metadata, BeamKV):
            result: Tensor = super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
            return result
        beam, rows = attn_metadata, attn_metadata.users * attn_metadata.width
        shape = (rows, self.num_kv_heads, self.head_size)
        own = beam.append(layer.layer_name, key.view(shape), value.view(shape))
        query_RHGD = query.view(rows, self.num_kv_heads, self.num_queries_per_kv, self.head_size) * self.scale
        attended = shared_prefix_attention(beam, query_RHGD, beam.prompt[layer.layer_name], own)
        output.copy_(attended.reshape(output.shape))
        return output


class BeamCPUBackend(CPUAttentionBackend):  # type: ignore[misc]
    """The backend that vLLM is told to use on CPU."""

    @staticmethod
    def get_impl_cls() -> type[BeamCPUImpl]:
        """The implementation above."""
        return BeamCPUImpl


def shared_prefix_attention(
    beam: BeamKV, query_RHGD: Tensor, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]
) -> Tensor:
    """Softmax attention of scaled queries over the user's prompt and the beam's own rows, [R, H, G, D]."""
    rows, heads, group, width = query_RHGD.shape
    users, beams = beam.users, beam.width
    key_XDP, value_XPD = prompt
    own_key_RlHD, own_value_RlHD = own
    query_X = query_RHGD.view(users, beams, heads, group, width).transpose(1, 2).reshape(users * heads, -1, width)
    prompt_score = torch.bmm(query_X, key_XDP).view(users, heads, beams, group, -1)
    if beam.padding_UP is not None:
        prompt_score = prompt_score + beam.padding_UP[:, None, None, None]
    own_score = torch.einsum("rhgd,rlhd->rhgl", query_RHGD, own_key_RlHD)
    own_score = own_score.view(users, beams, heads, group, -1).transpose(1, 2)
    weight = torch.softmax(torch.cat([prompt_score, own_score], -1).float(), -1).to(query_RHGD.dtype)
    length = prompt_score.shape[-1]
    from_prompt = torch.bmm(weight[..., :length].reshape(users * heads, beams * group, length), value_XPD)
    from_prompt = from_prompt.view(users, heads, beams, group, width).transpose(1, 2)
    own_weight = weight[..., length:].transpose(1, 2).reshape(rows, heads, group, -1)
    from_own = torch.einsum("rhgl,rlhd->rhgd", own_weight, own_value_RlHD)
    return from_prompt.reshape(rows, heads, group, width) + from_own


def gather_prompt_kv(layer: Any, block_table: Tensor, length: int, block_size: int) -> tuple[Tensor, Tensor]:
    """One layer's prompt keys [U*H, D, P] and values [U*H, P, D] out of the paged cache.

    ``block_table`` int [U, blocks] names each user's blocks in order; ``length`` is the longest prompt, P.
    """
    cache = layer.kv_cache
    blocks, heads, _, double = cache.shape
    head_width = double // 2
    users, count = block_table.shape
    key_place, value_place = cache_places(layer.isa, block_size, heads, head_width, cache.dtype)
    keys, values = cache.view(blocks, heads, 2 * block_size, head_width).chunk(2, dim=2)
    flat = (users, count, heads, block_size * head_width)
    key = keys[block_table].reshape(flat)[..., key_place.T.reshape(-1)]
    key = key.view(users, count, heads, head_width, block_size)
    value = values[block_table].reshape(flat)[..., value_place.reshape(-1)]
    value = value.view(users, count, heads, block_size, head_width)
    key_XDP = key.permute(0, 2, 3, 1, 4).reshape(users * heads, head_width, -1)[..., :length]
    value_XPD = value.permute(0, 2, 1, 3, 4).reshape(users * heads, -1, head_width)[:, :length]
    return key_XDP.contiguous(), value_XPD.contiguous()


_PLACES: dict[tuple[str, int, int, torch.dtype], tuple[Tensor, Tensor]] = {}


def cache_places(isa: str, block_size: int, heads: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Where element (token, dim) of a key and of a value lies inside one head's block, int64 [S, D] each.

    Raises:
        VersionError: the probe is no bijection, so the cache is packed in a way this code does not know.
    """
    known = (isa, block_size, width, dtype)
    if known not in _PLACES:
        _PLACES[known] = _probe_places(isa, block_size, heads, width, dtype)
    return _PLACES[known]


def _probe_places(isa: str, block_size: int, heads: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Write each bit of every element's number as 0 or 1 and read the numbers back from where they landed."""
    size = block_size * width
    number = torch.arange(size).view(block_size, 1, width)
    found = torch.zeros(2, size, dtype=torch.int64)
    for bit in range(max(1, (size - 1).bit_length())):
        plane = ((number >> bit) & 1).to(dtype).expand(block_size, heads, width).contiguous()
        cache = torch.zeros(1, heads, 2 * block_size, width, dtype=dtype)
        keys, values = cache.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(plane, plane, keys, values, torch.arange(block_size), isa)
        for side, half in enumerate((keys, values)):
            found[side] |= (half[0, 0].reshape(-1).float() > 0.5).long() << bit
    places = torch.argsort(found, dim=1)
    if not torch.equal(found.gather(1, places), torch.arange(size).expand(2, -1)):
        raise VersionError(f"vLLM packs its CPU cache ({isa}, {dtype}) in an unknown way; use the pinned version")
    return places[0].view(block_size, width), places[1].view(block_size, width)
