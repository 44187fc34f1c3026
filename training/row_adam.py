"""Adam on the rows of large tables that a gradient touches; the state exists for rows that were ever touched.

A dense Adam holds two more tables, and a third for bf16 weights. Here a row gets its moments (and, below float32, a
master copy) at its first gradient, so an optimiser's memory grows with the prefixes that occur, not with the table. A
row without a gradient in a step stands still: no momentum, no decay. Bias correction counts each row's own steps, so
a row touched at every step moves exactly as under dense Adam.

Shapes: R rows of a table, n rows with state, t rows of one gradient, d row width.
"""

import torch
from torch import Tensor, nn

GROWTH = 1.5


class RowAdam:
    """One table's optimiser.

    Args:
        weight: the table [R, d]; its gradients are sparse over rows.
        betas: decay of the moments.
        eps: added to the root of the second moment.
    """

    def __init__(self, weight: nn.Parameter, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8) -> None:
        self.weight, self._betas, self._eps = weight, betas, eps
        self._row_n, self._slot_n = torch.zeros(0).long(), torch.zeros(0).long()
        self._size, width = 0, weight.shape[1]
        self._moments = [torch.zeros(0, width), torch.zeros(0, width)]
        self._steps = torch.zeros(0, dtype=torch.int32)
        self._master: Tensor | None = None if weight.dtype == torch.float32 else torch.zeros(0, width)

    @property
    def num_rows(self) -> int:
        """How many rows have state."""
        return self._size

    def gradient(self) -> tuple[Tensor, Tensor]:
        """Touched rows int64 [t], ascending, and their gradients float32 [t, d]; rows of zero gradient are left out."""
        gradient = self.weight.grad
        if gradient is None:
            return torch.zeros(0).long(), torch.zeros(0, self.weight.shape[1])
        if not gradient.is_sparse:
            raise TypeError("a sparse table got a dense gradient; set the memory's sparse_gradients")
        gradient = gradient.coalesce()
        row_t, value_td = gradient.indices()[0], gradient.values().float()
        moved_t = (value_td != 0).any(1)
        return row_t[moved_t], value_td[moved_t]

    @torch.no_grad()
    def step(self, row_t: Tensor, gradient_td: Tensor, lr: float) -> None:
        """Move the rows ``row_t`` (ascending, distinct)."""
        if not row_t.numel():
            return
        slot_t = self._slots(row_t)
        average, square = self._moments
        steps_t = self._steps[slot_t] + 1
        average_td = average[slot_t].lerp_(gradient_td, 1 - self._betas[0])
        square_td = square[slot_t] * self._betas[1] + gradient_td.square() * (1 - self._betas[1])
        average[slot_t], square[slot_t], self._steps[slot_t] = average_td, square_td, steps_t
        first_t, second_t = (1 - beta ** steps_t.double() for beta in self._betas)
        root_td = (square_td.double() / second_t[:, None]).sqrt_().add_(self._eps)
        change_td = (average_td.double() / first_t[:, None] / root_td * lr).float()
        if self._master is None:
            self.weight[row_t] -= change_td
        else:
            self._master[slot_t] -= change_td
            self.weight[row_t] = self._master[slot_t].to(self.weight.dtype)

    def state(self) -> dict[str, Tensor]:
        """Touched rows with their values and moments; untouched rows are as they were when training began."""
        kept = slice(0, self._size)
        values = self.weight.detach()[self._row_n].float() if self._master is None else self._master[self._slot_n]
        order = self._slot_n
        named = {"exp_avg": self._moments[0][kept], "exp_avg_sq": self._moments[1][kept], "steps": self._steps[kept]}
        return {"rows": self._row_n.clone(), "values": values.clone()} | {n: t[order].clone() for n, t in named.items()}

    @torch.no_grad()
    def load_state(self, stored: dict[str, Tensor]) -> None:
        """The inverse of `state`, on a table as training began with.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has another shape.
        """
        row_n, value_nd = stored["rows"], stored["values"]
        if value_nd.shape != (len(row_n), self.weight.shape[1]) or (row_n >= len(self.weight)).any():
            raise RuntimeError(f"rows {tuple(value_nd.shape)} do not fit a table {tuple(self.weight.shape)}")
        self._row_n, self._slot_n, self._size = row_n.clone(), torch.arange(len(row_n)), len(row_n)
        self._moments = [stored["exp_avg"].clone(), stored["exp_avg_sq"].clone()]
        self._steps = stored["steps"].clone()
        self._master = None if self._master is None else value_nd.clone()
        self.weight[row_n] = value_nd.to(self.weight.dtype)

    def num_bytes(self) -> int:
        """What the state takes."""
        held = [self._row_n, self._slot_n, self._steps, *self._moments]
        return sum(t.numel() * t.element_size() for t in [*held, *([] if self._master is None else [self._master])])

    def _slots(self, row_t: Tensor) -> Tensor:
        """Where the rows' state lies, int64 [t]; rows without state get it."""
        place_t = torch.searchsorted(self._row_n, row_t)
        known_t = torch.zeros_like(row_t, dtype=torch.bool)
        if self._size:
            known_t = self._row_n[place_t.clamp(max=self._size - 1)] == row_t
        if not known_t.all():
            self._add(row_t[~known_t])
            place_t = torch.searchsorted(self._row_n, row_t)
        return self._slot_n[place_t]

    def _add(self, row_a: Tensor) -> None:
        size = self._size + len(row_a)
        if size > len(self._steps):
            self._grow(max(size, min(int(GROWTH * len(self._steps)), len(self.weight))))
        if self._master is not None:
            self._master[self._size : size] = self.weight.detach()[row_a].float()
        row_n = torch.cat([self._row_n, row_a])
        slot_n = torch.cat([self._slot_n, torch.arange(self._size, size)])
        self._row_n, order = torch.sort(row_n)
        self._slot_n, self._size = slot_n[order], size

    def _grow(self, capacity: int) -> None:
        more = capacity - len(self._steps)

        def longer(tensor: Tensor) -> Tensor:
            return torch.cat([tensor, torch.zeros(more, *tensor.shape[1:], dtype=tensor.dtype)])

        self._moments = [longer(moment) for moment in self._moments]
        self._steps = longer(self._steps)
        self._master = None if self._master is None else longer(self._master)
