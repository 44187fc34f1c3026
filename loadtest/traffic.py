"""What is asked when, and by whom: fixed before the first request is sent.

A scenario is a row of phases, each with its rate. Calls are recommendations, events and posted items in given shares;
users are as unequal as on a real site (Zipf). It sends nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from loadtest.arrivals import poisson_arrivals

Kind = Literal["recommend", "events", "items"]
GENRES = ("Drama", "Comedy", "Action", "Horror")


@dataclass(frozen=True, slots=True)
class Phase:
    """``rate`` calls a second for ``seconds``."""

    name: str
    rate: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the kinds of calls, and how unequal users are: user of rank r asks proportionally to r ** -``skew``."""

    events: float = 0.08
    items: float = 0.02
    skew: float = 0.8
    num_results: int = 10

    def __post_init__(self) -> None:
        if min(self.events, self.items, self.skew) < 0 or self.events + self.items > 1:
            raise ValueError(
                f"events {self.events} and items {self.items} are shares, and skew {self.skew} not below 0"
            )


@dataclass(frozen=True, slots=True)
class Call:
    """One request: seconds after the start, phase, kind, body."""

    due: float
    phase: str
    kind: Kind
    body: dict[str, Any]


def plan(phases: Sequence[Phase], mix: Mix, users: Sequence[str], items: Sequence[str], seed: int) -> list[Call]:
    """All calls of a scenario, in the order in which they are due.

    Args:
        phases: one after another.
        mix: kinds and users.
        users: ids, the busiest first.
        items: ids that events may name.
        seed: equal seeds, equal plans.
    """
    random = np.random.default_rng(seed)
    weight_U = np.arange(1, len(users) + 1, dtype=np.float64) ** -mix.skew
    calls: list[Call] = []
    start = 0.0
    for number, phase in enumerate(phases):
        due = [start + at for at in poisson_arrivals(phase.rate, phase.seconds, seed + number)]
        chosen = random.choice(len(users), len(due), p=weight_U / weight_U.sum())
        kinds = random.choice(3, len(due), p=[1 - mix.events - mix.items, mix.events, mix.items])
        for at, user, kind in zip(due, chosen, kinds, strict=True):
            item = items[int(random.integers(len(items)))]
            calls.append(_call(at, phase.name, int(kind), users[user], item, len(calls), mix))
        start += phase.seconds
    return calls


def _call(due: float, phase: str, kind: int, user: str, item: str, number: int, mix: Mix) -> Call:
    if kind == 0:
        return Call(due, phase, "recommend", {"user_id": user, "num_results": mix.num_results})
    if kind == 1:
        return Call(due, phase, "events", {"user_id": user, "item_id": item, "event": "click"})
    title = f"The {number} Nights"
    attributes = {"genres": [GENRES[number % len(GENRES)]], "load": number}
    return Call(due, phase, "items", {"item_id": f"load-{number}", "title": title, "attributes": attributes})
