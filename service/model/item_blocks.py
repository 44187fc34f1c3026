"""Histories in training: items side by side as blocks of one width, and where tokens stand once gaps are closed.

A block is an item's L codes and up to T tokens of its title, -1 where the title is shorter. The language model reads
no gaps, so the tokens of a block move up to those before; what is here says where each one goes.

Shapes: B sequences, N items, L levels, T tokens of a title, M = N * (L + T).
"""

import torch
from torch import Tensor


def token_order(levels: int, title_BNT: Tensor) -> Tensor:
    """The blocks' tokens without the gaps, int64 [B, longest]: indices into M; a shorter sequence ends in gaps."""
    codes_BNL = title_BNT.new_ones((*title_BNT.shape[:2], levels), dtype=torch.bool)
    real_BM = torch.cat([codes_BNL, title_BNT >= 0], 2).flatten(1)
    order_BM = torch.argsort(~real_BM, dim=1, stable=True)
    return order_BM[:, : int(real_BM.sum(1).max())]


def code_positions(levels: int, title_BNT: Tensor) -> Tensor:
    """Where each code stands among the tokens without gaps, int64 [B, N, L]."""
    length_BN = levels + (title_BNT >= 0).sum(2)
    start_BN = length_BN.cumsum(1) - length_BN
    return start_BN[..., None] + torch.arange(levels, device=title_BNT.device)
