"""Sparse tables: touched rows move as under dense Adam, the others never, and state exists for touched rows only."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.optimizer import MasterAdamW, ParameterGroup
from training.row_adam import RowAdam

ROWS, WIDTH = 200, 4


def table(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(ROWS, WIDTH).to(dtype))


def other() -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, WIDTH))


def optimizer(weight: nn.Parameter, dense: nn.Parameter, *, sparse: bool) -> MasterAdamW:
    groups = [ParameterGroup([dense], 1e-2, 0.1), ParameterGroup([weight], 5e-2, sparse=sparse)]
    return MasterAdamW(groups, 20, warmup=3)


def train(
    made: MasterAdamW, weight: nn.Parameter, dense: nn.Parameter, rows: Tensor, steps: range, *, sparse: bool
) -> list[float]:
    """Every row of ``rows`` gets a gradient in every step, some twice."""
    norms = []
    for step in steps:
        goal = torch.randn(len(rows), WIDTH, generator=torch.Generator().manual_seed(step))
        read = F.embedding(rows, weight, sparse=sparse).float() * dense
        (3 * (read - goal).square().sum()).backward()  # type: ignore[no-untyped-call]
        norms.append(made.step())
    return norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_touched_at_every_step_move_as_under_dense_adam(dtype: torch.dtype) -> None:
    rows = torch.tensor([3, 7, 7, 50, 199])
    ends = []
    for sparse in (True, False):
        weight, dense = table(dtype), other()
        made = optimizer(weight, dense, sparse=sparse)
        norms = train(made, weight, dense, rows, range(20), sparse=sparse)
        ends.append((weight.detach(), dense.detach(), torch.tensor(norms)))
    for found, expected in zip(*ends, strict=True):
        # bfloat16 tables: gradients of a row met twice are rounded in another order
        torch.testing.assert_close(found, expected, atol=3e-5 if dtype == torch.float32 else 3e-2, rtol=1e-3)
    assert not torch.equal(ends[0][0][rows], table(dtype)[rows])


def test_untouched_rows_and_their_state_never_move() -> None:
    weight, dense = table(), other()
    made = optimizer(weight, dense, sparse=True)
    train(made, weight, dense, torch.tensor([1, 2]), range(2), sparse=True)
    after_two = weight.detach().clone()
    state = made.state()
    train(made, weight, dense, torch.tensor([2, 3]), range(2, 6), sparse=True)
    assert torch.equal(weight[1], after_two[1])  # no momentum carries row 1 on
    kept = [0, *range(4, ROWS)]
    assert torch.equal(weight[kept], table()[kept])
    later = made.state()
    assert later["table0.rows"].tolist() == [1, 2, 3]
    for name in ("exp_avg", "exp_avg_sq", "steps", "values"):
        assert torch.equal(state[f"table0.{name}"][0], later[f"table0.{name}"][0])
    assert later["table0.steps"].tolist() == [2, 6, 4]


def test_the_state_grows_with_touched_rows_not_with_the_table() -> None:
    weight = nn.Parameter(torch.zeros(1_000_000, 8, dtype=torch.bfloat16))
    dense = nn.Parameter(torch.ones(8))
    made = MasterAdamW([ParameterGroup([dense], 1e-2), ParameterGroup([weight], 1e-2, sparse=True)], 10)
    for step in range(10):
        rows = torch.arange(step * 50, step * 50 + 100)
        (F.embedding(rows, weight, sparse=True).float() * dense - 1).square().sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        assert weight.grad.is_sparse
        made.step()
        assert weight.grad is None
    touched = 550
    per_row = 3 * 8 * 4 + 4 + 2 * 8  # two moments and a master row, a step count, row and slot
    assert made.table_bytes() <= 1.5 * touched * per_row
    assert made.table_bytes() < 0.01 * weight.numel() * weight.element_size()
    held = sum(t.numel() for name, t in made.state().items() if name.startswith("table"))
    assert held <= touched * (3 * 8 + 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_equals_an_uninterrupted_one(dtype: torch.dtype) -> None:
    rows = torch.tensor([5, 9, 120])
    whole, whole_dense = table(dtype), other()
    train(optimizer(whole, whole_dense, sparse=True), whole, whole_dense, rows, range(8), sparse=True)
    part, part_dense = table(dtype), other()
    first = optimizer(part, part_dense, sparse=True)
    train(first, part, part_dense, rows, range(5), sparse=True)
    rest, rest_dense = table(dtype), other()
    second = optimizer(rest, rest_dense, sparse=True)
    second.load_state(first.state())
    train(second, rest, rest_dense, rows, range(5, 8), sparse=True)
    assert torch.equal(whole, rest)
    assert torch.equal(whole_dense, rest_dense)


def test_small_updates_of_bfloat16_rows_add_up() -> None:
    weight = nn.Parameter(torch.ones(3, 1, dtype=torch.bfloat16))
    made = RowAdam(weight)
    for _ in range(100):
        made.step(torch.tensor([1]), torch.ones(1, 1), 1e-4)
    assert weight[1].item() == pytest.approx(0.99, abs=0.004)


def test_state_of_another_table_is_refused() -> None:
    weight, dense = table(), other()
    made = optimizer(weight, dense, sparse=True)
    train(made, weight, dense, torch.tensor([150]), range(1), sparse=True)
    small = nn.Parameter(torch.zeros(100, WIDTH))
    with pytest.raises(RuntimeError, match="do not fit"):
        optimizer(small, other(), sparse=True).load_state(made.state())


def test_decay_and_dense_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot decay"):
        ParameterGroup([table()], 1.0, 0.1, sparse=True)
    weight, dense = table(), other()
    made = optimizer(weight, dense, sparse=True)
    with pytest.raises(TypeError, match="sparse_gradients"):
        train(made, weight, dense, torch.tensor([1]), range(1), sparse=False)
