"""AdamW on bf16 weights: fp32 master copies, a cosine schedule with warm-up, clipping, and state as flat tensors.

Bf16 alone loses small updates; master copies cost nothing measurable on these sizes. Works on fp32 weights too. Tables
with sparse gradients have state for their touched rows only (`row_adam.py`). A moving average of the weights may lie
beside them (Polyak), to be measured and kept instead of the weights of a single step:

    average <- d average + (1 - d) master,    d = min(decay, (1 + t) / (10 + t)) at step t
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.row_adam import RowAdam
from training.sharded import shard_like, whole


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that share a learning rate and a weight decay; ``sparse`` ones have gradients of single rows."""

    parameters: Sequence[nn.Parameter]
    lr: float
    weight_decay: float = 0.0
    sparse: bool = False

    def __post_init__(self) -> None:
        if self.sparse and self.weight_decay:
            raise ValueError("rows without a gradient are not touched, so sparse tables cannot decay")


class MasterAdamW:
    """One optimiser step over all groups; weights without a gradient stay where they are.

    Args:
        groups: what is trained.
        total_steps: the length of the schedule; the rate ends at ``floor`` of its peak.
        warmup: steps of linear warm-up.
        floor: the last learning rate as a share of the peak.
        max_norm: gradient norm above which all gradients are scaled down.
        average: decay of the moving average, 0 for none. Sparse tables are not averaged.
    """

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        total_steps: int,
        *,
        warmup: int = 20,
        floor: float = 0.05,
        max_norm: float = 1.0,
        average: float = 0.0,
    ) -> None:
        if not 0 <= average < 1:
            raise ValueError(f"the average's decay {average} must lie in 0..1, 1 excluded")
        self._tables = [(RowAdam(weight), group.lr) for group in groups if group.sparse for weight in group.parameters]
        groups = [group for group in groups if not group.sparse]
        self._weights = [weight for group in groups for weight in group.parameters]
        self._masters = [_master(weight) for weight in self._weights]
        self._average = average
        self._averages = [master.detach().clone() for master in self._masters] if average else []
        self._peaks = [group.lr for group in groups]
        self._total, self._warmup, self._floor, self._max_norm = total_steps, warmup, floor, max_norm
        self.steps = 0
        masters = iter(self._masters)
        self._adamw = torch.optim.AdamW(
            [
                {
                    "params": [next(masters) for _ in group.parameters],
                    "lr": group.lr,
                    "weight_decay": group.weight_decay,
                }
                for group in groups
            ],
            betas=(0.9, 0.95),
            fused=True,
        )

    def step(self) -> float:
        """Apply the gradients on the weights and clear them; returns the gradient norm before clipping."""
        self.steps += 1
        for settings, peak in zip(self._adamw.param_groups, self._peaks, strict=True):
            settings["lr"] = peak * self._factor()
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        norm = self._clipped() if self._tables else whole(nn.utils.clip_grad_norm_(self._masters, self._max_norm))
        self._adamw.step()
        self._follow()
        self._copy_back()
        return float(norm)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within, the weights are their averages, if any are kept."""
        kept = [master.detach().clone() for master in self._masters] if self._averages else []
        self._put(self._averages)
        try:
            yield
        finally:
            self._put(kept)

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, as flat tensors for safetensors (copies: later steps do not change them)."""
        stored = {"steps": torch.tensor(self.steps)}
        for number, master in enumerate(self._masters):
            moments = self._adamw.state.get(master, {})
            stored[f"{number}.master"] = whole(master.detach()).clone()
            for name in ("exp_avg", "exp_avg_sq", "step"):
                if name in moments:
                    stored[f"{number}.{name}"] = whole(moments[name]).clone()
        for number, average in enumerate(self._averages):
            stored[f"{number}.average"] = whole(average).clone()
        for number, (table, _) in enumerate(self._tables):
            stored |= {f"table{number}.{name}": tensor for name, tensor in table.state().items()}
        return stored

    def load_state(self, stored: dict[str, Tensor]) -> None:
        """The inverse of `state`; also sets the weights.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has another shape.
        """
        self.steps = int(stored["steps"])
        for number, master in enumerate(self._masters):
            master.data.copy_(shard_like(stored[f"{number}.master"], master))
            names = [name for name in ("exp_avg", "exp_avg_sq", "step") if f"{number}.{name}" in stored]
            if names:
                self._adamw.state[master] = {name: _moment(stored[f"{number}.{name}"], master) for name in names}
        for number, average in enumerate(self._averages):
            average.copy_(shard_like(stored[f"{number}.average"], average))
        for number, (table, _) in enumerate(self._tables):
            head = f"table{number}."
            table.load_state({n.removeprefix(head): tensor for n, tensor in stored.items() if n.startswith(head)})
        self._copy_back()

    def table_bytes(self) -> int:
        """What the state of the sparse tables takes."""
        return sum(table.num_bytes() for table, _ in self._tables)

    def _clipped(self) -> Tensor:
        """Scale dense and sparse gradients by their common norm, which is returned, and move the tables."""
        sparse = [table.gradient() for table, _ in self._tables]
        dense = [master.grad for master in self._masters if master.grad is not None]
        norm = nn.utils.get_total_norm([*dense, *(value_td for _, value_td in sparse)])
        nn.utils.clip_grads_with_norm_(self._masters, self._max_norm, norm)
        scale = (self._max_norm / (norm + 1e-6)).clamp(max=1.0)
        for (table, lr), (row_t, value_td) in zip(self._tables, sparse, strict=True):
            table.step(row_t, value_td * scale, lr * self._factor())
            table.weight.grad = None
        return norm

    @torch.no_grad()
    def _follow(self) -> None:
        decay = min(self._average, (1 + self.steps) / (10 + self.steps))
        for average, master in zip(self._averages, self._masters, strict=False):
            average.mul_(decay).add_(master, alpha=1 - decay)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        for weight, value in zip(self._weights, values, strict=False):
            weight.copy_(value)

    @torch.no_grad()
    def _copy_back(self) -> None:
        for weight, master in zip(self._weights, self._masters, strict=True):
            if weight is not master:
                weight.copy_(master)
            weight.grad = master.grad = None

    def _factor(self) -> float:
        if self.steps <= self._warmup:
            return self.steps / self._warmup
        done = min(1.0, (self.steps - self._warmup) / max(1, self._total - self._warmup))
        return self._floor + (1 - self._floor) * 0.5 * (1 + math.cos(math.pi * done))


def _master(weight: nn.Parameter) -> Tensor:
    # a float32 weight is its own master
    return weight if weight.dtype == torch.float32 else weight.detach().float().clone().requires_grad_(True)


def _moment(stored: Tensor, master: Tensor) -> Tensor:
    return stored.clone() if stored.ndim == 0 else shard_like(stored, master)
