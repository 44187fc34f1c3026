"""The model while it is fine-tuned: the loss as one forward pass, alone, averaged by DDP or sharded by FSDP.

Each process reads its share of a batch. Its loss is scaled so that the average DDP and FSDP take over processes is the
mean over all predicted items of the batch, as one process would have it; a process without a window reads one with
weight zero. Gradients travel as float32. Under FSDP the given model stays whole beside the shards: it is what is
validated and saved, and `pull` brings it up to date.
"""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from service.model.grounded_lm import GroundedLM
from training.batches import Batch, ItemTokens, Window, collate
from training.processes import Processes, Sharding, Share, peers_named
from training.sharded import whole


class Alignment(Protocol):
    """The loss of one process's share of the ``step``-th batch of pairs."""

    def __call__(self, step: int, share: Share = ..., /) -> Tensor:
        """Scaled as `Share.scale` says."""
        ...


class NextItemLoss(Protocol):
    """The mean loss over a batch's predicted items."""

    def __call__(self, model: GroundedLM, batch: Batch, /) -> Tensor:
        """A scalar."""
        ...


class TrainingStep(nn.Module):
    """Next-item loss and pair loss of one process's share of a step."""

    def __init__(
        self,
        model: GroundedLM,
        items: ItemTokens,
        loss: NextItemLoss,
        alignment: Alignment | None,
        share: Share,
    ) -> None:
        super().__init__()
        self.model, self.alignment = model, alignment
        self._item_tokens, self._loss, self._share = items, loss, share

    def forward(self, windows: Sequence[Window], pair_step: int | None) -> tuple[Tensor, Tensor]:
        """``(next-item loss, pair loss)``, a zero in the place of what the step does not ask for."""
        zero = torch.zeros(())
        items = self._items(windows) if windows else zero
        pairs = zero if pair_step is None or self.alignment is None else self.alignment(pair_step, self._share)
        return items, pairs

    def _items(self, windows: Sequence[Window]) -> Tensor:
        mine = self._share.of(windows)
        scale = self._share.scale(_targets(mine), _targets(windows))
        batch = collate(mine or windows[:1], self._item_tokens)
        return scale * self._loss(self.model, batch.to(self.model.sid_rows.device))


class Trainee:
    """``model`` in training among ``processes``; what is trained must require gradients already.

    Attributes:
        trained: the module whose parameters the optimiser moves: ``model`` itself, or its sharded copy.
    """

    def __init__(
        self,
        model: GroundedLM,
        items: ItemTokens,
        loss: NextItemLoss,
        alignment: Alignment | None,
        processes: Processes,
    ) -> None:
        self._model = model
        step = TrainingStep(model, items, loss, alignment, processes.share)
        if processes.sharding is not None or processes.device.type != "cpu":
            step = copy.deepcopy(step)
        self.trained: GroundedLM = step.model
        self._step: nn.Module = step
        if processes.sharding is not None:
            self._step = _sharded(step, processes, processes.sharding)
        elif processes.share.count > 1:
            self._step = _averaged(step.to(processes.device), processes)

    def losses(self, windows: Sequence[Window], pair_step: int | None) -> tuple[Tensor, Tensor]:
        """Forward pass over this process's share; see `TrainingStep.forward`."""
        with peers_named():
            found: tuple[Tensor, Tensor] = self._step(windows, pair_step)
        return found

    def backward(self, loss: Tensor) -> None:
        """Gradients, averaged over the processes."""
        with peers_named():
            loss.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def pull(self) -> None:
        """Bring the given model up to date; every process must call."""
        if self.trained is self._model:
            return
        for target, source in zip(self._model.parameters(), self.trained.parameters(), strict=True):
            if target.requires_grad:
                target.copy_(whole(source))


def _targets(windows: Sequence[Window]) -> int:
    return sum(len(window.items) - window.first_target for window in windows)


def _averaged(step: TrainingStep, processes: Processes) -> nn.Module:
    # a pair that asks for text leaves an untied head's SID rows without a gradient
    unused = step.alignment is not None and step.model.sid_head is not None
    ddp = DistributedDataParallel(step, forward_sync_buffers=False, find_unused_parameters=unused)
    if step.model.dtype != torch.float32:
        ddp.register_comm_hook(None, _average_in_float32)
    return ddp


# DDP looks at these two annotations
def _average_in_float32(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    gradient: Tensor = bucket.buffer()
    wide = gradient.float().div_(dist.get_world_size())
    work = dist.all_reduce(wide, async_op=True)
    assert work is not None

    def narrow(done: Any) -> Tensor:
        return gradient.copy_(done.value()[0])

    averaged: torch.futures.Future[Tensor] = work.get_future().then(narrow)
    return averaged


def _sharded(step: TrainingStep, processes: Processes, sharding: Sharding) -> nn.Module:
    """FSDP2: one group a decoder layer, and one for all the rest (SID rows, memory, frozen vocabulary)."""
    mesh = init_device_mesh(processes.device.type, (processes.share.count,))
    options: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": sharding.reshard_after_forward,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy() if sharding.offload else OffloadPolicy(),
    }
    layers = step.model.lm.base_model.get_submodule("layers")
    for layer in layers.children():
        fully_shard(layer, **options)
    fully_shard(step, **options)
    return step
