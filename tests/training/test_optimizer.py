"""Small updates are not lost in bfloat16, the schedule is what it says, and a stopped run goes on exactly."""

import pytest
import torch
from torch import nn

from training.optimizer import MasterAdamW, ParameterGroup


def weights(dtype: torch.dtype) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(4, 3).to(dtype)), nn.Parameter(torch.randn(3).to(dtype))]


def train(optimizer: MasterAdamW, parameters: list[nn.Parameter], first: int, last: int) -> None:
    for step in range(first, last):
        torch.manual_seed(step)
        for weight in parameters:
            weight.grad = torch.randn(weight.shape).to(weight.dtype)
        optimizer.step()


def test_updates_below_the_precision_of_the_weights_add_up() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = MasterAdamW([ParameterGroup([weight], 1e-4)], 1000, warmup=1, floor=1.0)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert weight.item() == pytest.approx(0.99, abs=0.004)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_is_its_recursion_and_the_weights_come_back(dtype: torch.dtype) -> None:
    moved = weights(dtype)
    optimizer = MasterAdamW([ParameterGroup(moved, 1e-2)], 10, warmup=1, average=0.5)
    expected = [weight.detach().float().clone() for weight in moved]
    for step in range(1, 7):
        train(optimizer, moved, step, step + 1)
        decay = min(0.5, (1 + step) / (10 + step))
        masters = [optimizer.state()[f"{number}.master"] for number in range(2)]
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, masters, strict=True)]
    before = [weight.detach().clone() for weight in moved]
    with optimizer.averaged():
        for weight, average in zip(moved, expected, strict=True):
            assert torch.allclose(weight.float(), average.to(dtype).float(), atol=1e-6)
            assert not torch.equal(weight, before[0])
    assert all(torch.equal(weight, old) for weight, old in zip(moved, before, strict=True))


def test_without_an_average_the_weights_stay() -> None:
    moved = weights(torch.float32)
    optimizer = MasterAdamW([ParameterGroup(moved, 1e-2)], 10, warmup=1)
    train(optimizer, moved, 0, 3)
    before = [weight.detach().clone() for weight in moved]
    with optimizer.averaged():
        assert all(torch.equal(weight, old) for weight, old in zip(moved, before, strict=True))
    with pytest.raises(ValueError, match=r"0\.\.1"):
        MasterAdamW([ParameterGroup(moved, 1e-2)], 10, average=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_equals_an_uninterrupted_one(dtype: torch.dtype) -> None:
    whole, parts, rest = weights(dtype), weights(dtype), weights(dtype)
    train(MasterAdamW([ParameterGroup(whole, 1e-2, 0.1)], 10, warmup=3), whole, 0, 10)
    first = MasterAdamW([ParameterGroup(parts, 1e-2, 0.1)], 10, warmup=3)
    train(first, parts, 0, 4)
    state = first.state()
    train(first, parts, 4, 6)
    second = MasterAdamW([ParameterGroup(rest, 1e-2, 0.1)], 10, warmup=3)
    second.load_state(state)
    train(second, rest, 4, 10)
    assert second.steps == 10
    assert all(torch.equal(a, b) for a, b in zip(whole, rest, strict=True))


def test_a_weight_without_a_gradient_does_not_decay() -> None:
    used, unused = weights(torch.float32)
    before = unused.detach().clone()
    optimizer = MasterAdamW([ParameterGroup([used, unused], 1e-2, weight_decay=0.5)], 10, warmup=1)
    used.grad = torch.ones_like(used)
    optimizer.step()
    assert torch.equal(unused, before)
    assert used.grad is None


def test_the_rate_warms_up_and_falls_to_the_floor() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = MasterAdamW([ParameterGroup([weight], 1.0)], 20, warmup=5, floor=0.1)
    rates = []
    for _ in range(20):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        rates.append(optimizer._adamw.param_groups[0]["lr"])
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_gradients_are_clipped_together() -> None:
    used, other = weights(torch.float32)
    optimizer = MasterAdamW([ParameterGroup([used, other], 1e-2)], 10)
    used.grad, other.grad = torch.full_like(used, 100.0), torch.full_like(other, 100.0)
    assert optimizer.step() == pytest.approx(100 * 15**0.5)


def test_state_of_another_shape_is_refused() -> None:
    optimizer = MasterAdamW([ParameterGroup(weights(torch.float32), 1e-2)], 10)
    state = optimizer.state() | {"0.master": torch.zeros(7, 7)}
    with pytest.raises(RuntimeError):
        optimizer.load_state(state)
