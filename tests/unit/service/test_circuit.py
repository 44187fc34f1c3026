"""A breaker opens after failures in a row, lets one call try, and is moved by nothing else."""

import asyncio

import pytest

from service.circuit import Circuit
from service.errors import StorageError, StorageFullError
from service.metrics import Metrics


class Clocked:
    """A circuit with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self.circuit = Circuit("redis", StorageError, self.metrics, failures=3, clock=lambda: self.now)
        self.calls = 0

    def call(self, error: BaseException | None = None) -> None:
        with self.circuit.call(StorageError, answers=(StorageFullError,)):
            self.calls += 1
            if error:
                raise error

    def fail(self, times: int) -> None:
        for _ in range(times):
            with pytest.raises(StorageError):
                self.call(StorageError("down"))

    def gauge(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"dependency": "redis"})


def test_it_opens_after_failures_in_a_row_only() -> None:
    clocked = Clocked()
    clocked.fail(2)
    clocked.call()
    clocked.fail(2)
    assert not clocked.circuit.is_open
    clocked.fail(1)
    assert clocked.circuit.is_open
    assert (clocked.gauge("rec_circuit_open"), clocked.gauge("rec_dependency_up")) == (1.0, 0.0)


def test_an_open_circuit_refuses_without_calling() -> None:
    clocked = Clocked()
    clocked.fail(3)
    with pytest.raises(StorageError, match="left alone"):
        clocked.call()
    assert clocked.calls == 3


def test_after_the_rest_one_call_tries_and_its_success_closes() -> None:
    clocked = Clocked()
    clocked.fail(3)
    clocked.now = 1.5
    with clocked.circuit.call(StorageError), pytest.raises(StorageError, match="left alone"):
        clocked.call()
    assert not clocked.circuit.is_open
    assert (clocked.gauge("rec_circuit_open"), clocked.gauge("rec_dependency_up")) == (0.0, 1.0)


def test_a_failed_try_opens_it_for_another_rest() -> None:
    clocked = Clocked()
    clocked.fail(3)
    clocked.now = 1.5
    clocked.fail(1)
    with pytest.raises(StorageError, match="left alone"):
        clocked.call()
    clocked.now = 3.0
    clocked.call()
    assert not clocked.circuit.is_open


def test_a_refusal_by_a_working_dependency_is_no_failure() -> None:
    clocked = Clocked()
    for _ in range(9):
        with pytest.raises(StorageFullError):
            clocked.call(StorageFullError("full"))
    assert not clocked.circuit.is_open


def test_a_cancelled_call_says_nothing_and_gives_the_try_to_the_next() -> None:
    clocked = Clocked()
    clocked.fail(3)
    clocked.now = 1.5
    with pytest.raises(asyncio.CancelledError):
        clocked.call(asyncio.CancelledError())
    assert clocked.circuit.is_open
    clocked.call()
    assert not clocked.circuit.is_open


def test_a_bug_is_not_the_dependencys_fault() -> None:
    clocked = Clocked()
    for _ in range(9):
        with pytest.raises(ZeroDivisionError):
            clocked.call(ZeroDivisionError())
    assert not clocked.circuit.is_open
