"""Tensors that may be spread over processes: put together, and taken apart as another one is.

Ordinary tensors pass through, so that the optimiser has one way to store and restore its state.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; of a sharded one every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of the whole ``tensor``, spread as ``like`` is and in its dtype."""
    tensor = tensor.detach().to(like.device, like.dtype, copy=True)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
