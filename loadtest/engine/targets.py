"""The engine's targets and whether the rows of a run meet them.

Each target is one figure compared with one bound, judged per mode and only where it was measured. A rival is compared
in our own mode: compiled ours with the compiled rival.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.engine.paired import middle, paired_ratio
from loadtest.engine.rows import Row


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target in one mode. ``measured`` is None and ``verdict`` "not measured" when no row says."""

    target: str
    mode: str
    bound: str
    measured: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Target:
    """``figure(rows, mode)`` gives the figure or None; it must be at least, or at most, ``bound``."""

    name: str
    figure: Callable[[Sequence[Row], str], float | None]
    bound: float
    at_least: bool
    modes: tuple[str, ...] = ("eager", "compiled")

    def judge(self, rows: Sequence[Row], mode: str) -> Verdict:
        """Compare."""
        measured = self.figure(rows, mode)
        text = f"{'≥' if self.at_least else '≤'} {self.bound:g}"
        if measured is None:
            return Verdict(self.name, mode, text, None, "not measured")
        met = measured >= self.bound if self.at_least else measured <= self.bound
        return Verdict(self.name, mode, text, round(measured, 4), "pass" if met else "short")


def find(rows: Iterable[Row], section: str, **wanted: object) -> list[Row]:
    """The rows of a section whose fields have these values."""
    return [row for row in rows if row["section"] == section and all(row.get(k) == v for k, v in wanted.items())]


def over_ours(rival: str, **cell: int) -> Callable[[Sequence[Row], str], float | None]:
    """The rival's CPU time over ours in a cell, round by round."""
    return lambda rows, mode: _ratio(rows, mode, rival, "ours", cell)


def of_line(*cells: dict[str, int]) -> Callable[[Sequence[Row], str], float | None]:
    """The hardware line's CPU time over ours, the least of several cells."""

    def least(rows: Sequence[Row], mode: str) -> float | None:
        ratios = [_ratio(rows, mode, "line", "ours", cell) for cell in cells]
        known = [ratio for ratio in ratios if ratio is not None]
        return min(known) if known else None

    return least


def cost(name: str) -> Callable[[Sequence[Row], str], float | None]:
    """A figure of the costs section, of any mode that has one of that name."""

    def figure(rows: Sequence[Row], mode: str) -> float | None:
        found = find(rows, "costs", figure=name, mode=mode)
        return float(found[0]["value"]) if found else None

    return figure


def served(name: str) -> Callable[[Sequence[Row], str], float | None]:
    """A figure of the served section."""

    def figure(rows: Sequence[Row], mode: str) -> float | None:
        found = find(rows, "served", figure=name, mode=mode)
        return float(found[0]["value"]) if found else None

    return figure


def constraint_share(rows: Sequence[Row], mode: str) -> float | None:
    """CPU of the constraint at 10^6 items over what the request costs beside its prefill (batch 8, beam 50)."""
    rows_at = find(rows, "constraint", items=10**6)
    decode = cost("decode_ms_per_batch")(rows, mode)
    if not rows_at or not decode:
        return None
    pairs = zip(rows_at[0]["beam_ms"], rows_at[0]["unconstrained_ms"], strict=True)
    return middle([beam - free for beam, free in pairs]) / decode


def constraint_growth(rows: Sequence[Row], mode: str) -> float | None:
    """The constrained beam at the largest catalogue over the smallest."""
    found = sorted(find(rows, "constraint"), key=lambda row: int(row["items"]))
    if len(found) < 2:
        return None
    return middle(found[-1]["beam_ms"]) / middle(found[0]["beam_ms"])


def build(field: str) -> Callable[[Sequence[Row], str], float | None]:
    """A figure of the trie at 10^6 items."""

    def figure(rows: Sequence[Row], mode: str) -> float | None:
        found = find(rows, "constraint", items=10**6)
        return float(found[0][field]) if found else None

    return figure


_LINE_CELLS = [{"batch": batch, "beam": beam, "prompt": 160} for batch in (8, 32) for beam in (20, 50)]

EAGER = ("eager",)  # what has one bound only, or no mode at all

TARGETS = (
    Target("one-token loop over ours, batch 8, beam 50", over_ours("one_token", batch=8, beam=50, prompt=160), 4, True),
    Target("vLLM's beam over ours, batch 8, beam 50", over_ours("vllm_beam", batch=8, beam=50, prompt=160), 6, True),
    Target("HF generate over ours, batch 1, beam 50", over_ours("hf_generate", batch=1, beam=50, prompt=160), 30, True),
    Target("hardware line over ours, batch 8 and 32, beam 20 and 50 (least)", of_line(*_LINE_CELLS), 0.9, True),
    Target("constraint's share of the decode steps at 10^6 items", constraint_share, 0.01, False),
    Target("constrained beam at the largest catalogue over the smallest", constraint_growth, 1.1, False, EAGER),
    Target("prefix memory's share", cost("prefix_memory_share"), 0.02, False),
    Target("filtered over unfiltered request, known rule", cost("filtered_ratio"), 1.05, False),
    Target("share of prefill saved for a returning user", cost("prefill_saved"), 0.8, True),
    Target("start until the first canary, s", served("start_s"), 15, False, EAGER),
    Target("one insert visible after, ms", served("insert_ms"), 10, False, EAGER),
    Target("inserts a second, 10^4 at once", served("inserts_per_second"), 10_000, True, EAGER),
    Target("trie bytes per item at 10^6", build("bytes_per_item"), 30, False, EAGER),
    Target("trie of 10^6 items built in, CPU s", build("build_s"), 3, False, EAGER),
)


def judge(rows: Sequence[Row], modes: Sequence[str], world: str) -> list[Verdict]:
    """All targets in all modes in which they have a bound, by the rows of one world (and those of none)."""
    of_world = [row for row in rows if row.get("world", world) == world]
    return [target.judge(of_world, mode) for target in TARGETS for mode in modes if mode in target.modes]


def _ratio(rows: Sequence[Row], mode: str, above: str, below: str, cell: dict[str, int]) -> float | None:
    for row in find(rows, "cells", mode=mode, contender=below, **cell):
        rivals = find(rows, "cells", name=row["name"], contender=above)
        if rivals:
            return paired_ratio(rivals[0]["cost_ms"], row["cost_ms"])
    return None
