"""What scoring every new item costs a request, and what a posted item costs the scorer: `service.new_items` alone.

Embeddings are random unit vectors: the cost does not depend on what texts say. Wall and
process CPU time are medians of many calls in one run.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.model.new_items import NewItemDial
from service.new_items import NewItems

WIDTH = 384
FOUND = 50
HISTORIES = 64
CALLS = 50
POSTS = 10


def measure(trained: int, new: Sequence[int]) -> dict[str, Any]:
    """Milliseconds per request and per posted item for a catalogue of ``trained`` items and so many new ones."""
    random = np.random.default_rng(0)
    item_ids = [f"t{row}" for row in range(trained)]
    items = NewItems(item_ids, _unit(random, trained), NewItemDial(0.0, 1.0, 0.3))
    rows = []
    for count in sorted(new):
        items.change({f"n{row}": vector for row, vector in enumerate(_unit(random, count))})
        rows.append({"new_items": count, **_requests(items, random, trained), **_posts(items, random)})
    return {"trained_items": trained, "history": 10, "found_by_beam": FOUND, "rows": rows}


def _requests(items: NewItems, random: np.random.Generator, trained: int) -> dict[str, float]:
    histories = [[f"t{row}" for row in random.integers(0, trained, 10)] for _ in range(HISTORIES)]
    found = [(f"t{row}", -3.0) for row in range(FOUND)]
    for history in histories:
        next(items.scored(history, found))
    turn = iter(histories * CALLS)
    return _timed("request", lambda: next(items.scored(next(turn), found)), CALLS)


def _posts(items: NewItems, random: np.random.Generator) -> dict[str, float]:
    vectors = iter(_unit(random, POSTS))
    return _timed("post", lambda: items.change({"posted": next(vectors)}), POSTS)


def _timed(name: str, call: Callable[[], Any], calls: int) -> dict[str, float]:
    wall, cpu = [], []
    for _ in range(calls):
        started, began = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - began)
    return {f"{name}_wall_ms": 1000 * float(np.median(wall)), f"{name}_cpu_ms": 1000 * float(np.median(cpu))}


def _unit(random: np.random.Generator, rows: int) -> NDArray[np.float32]:
    vectors = random.normal(size=(rows, WIDTH)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
