"""One bit per trie node, packed into bytes, little end first: which nodes are live, or legal for a request.

Functions on plain uint8 tensors, because the bits of a level are shared between catalogue versions and copied only
when they change. None stands for "all set" wherever a level's bits are optional.

Shapes: X bytes, N nodes.
"""

import torch
from torch import Tensor

Bits = Tensor | None


def has_bit(bits_X: Tensor, node_N: Tensor) -> Tensor:
    """Whether each node's bit is set, bool [N]; what node -1 gives means nothing."""
    return (bits_X[node_N >> 3] >> (node_N & 7).to(torch.uint8)) & 1 != 0


def pack_bits(mask_N: Tensor) -> Tensor:
    """A bool mask as bits, uint8 [ceil(N / 8)]."""
    padded = torch.nn.functional.pad(mask_N.to(torch.uint8), (0, -mask_N.numel() % 8)).view(-1, 8)
    weight = (1 << torch.arange(8, device=mask_N.device)).to(torch.uint8)
    return (padded * weight).sum(1, dtype=torch.uint8)


def unpack_bits(bits_X: Tensor, nodes: int) -> Tensor:
    """Bits as a bool mask [nodes]; a missing tail is false."""
    shift = torch.arange(8, device=bits_X.device, dtype=torch.uint8)
    mask = ((bits_X[:, None] >> shift) & 1).flatten()[:nodes] != 0
    return torch.nn.functional.pad(mask, (0, nodes - mask.numel()))


def with_bits(bits_X: Tensor, node_N: Tensor, value: bool, nodes: int) -> Tensor:
    """A copy for ``nodes`` nodes in which some distinct nodes' bits are ``value``; others beyond the old end are 0."""
    copy = torch.nn.functional.pad(bits_X, (0, (nodes + 7) // 8 - bits_X.numel()))
    copy = copy.clone() if copy.data_ptr() == bits_X.data_ptr() else copy
    byte, which = torch.unique(node_N >> 3, return_inverse=True)
    change = torch.zeros_like(byte).index_add(0, which, 1 << (node_N & 7)).to(torch.uint8)
    copy[byte] = copy[byte] | change if value else copy[byte] & ~change
    return copy
