"""What the prefix memory adds to fine-tuning: the same steps without it and with tables of several sizes, in turns.

The contenders are those of `bench_training`: one process each, rounds in a rotating order, ratios inside rounds. CPU
seconds of all threads are the cost. Tables beyond 100,000 rows have sparse gradients, as a recipe would ask for. Where
a process's memory happens to lie moves its speed by a few per cent for as long as it lives, so all are started anew
several times, and ``memory:0`` is the loop without memory once more: what it seems to add is the noise.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench_training import in_turns, medians, shape
from loadtest.engine.paired import paired_ratio
from loadtest.training_contender import MEMORY

TARGET = 0.03
WITHOUT, NOISE = "ours", f"{MEMORY}0"


def measure(rows: Sequence[int], layers: int, rounds: int, steps: int, threads: int, starts: int = 1) -> dict[str, Any]:
    """Medians of every contender, and the share of time that each memory adds."""
    names = [WITHOUT, NOISE, *(f"{MEMORY}{count}" for count in rows)]
    begun = [in_turns(names, layers, rounds, steps, threads) for _ in range(starts)]
    measured = {name: [row for start in begun for row in start[name]] for name in names}
    contenders = {name: medians(measured[name]) for name in names}
    added = {name: added_time(measured[WITHOUT], measured[name]) for name in names[1:]}
    reached = all(told["cpu_seconds"] < TARGET for name, told in added.items() if name != NOISE)
    figures = {"starts": starts, "contenders": contenders, "added": added, "target": TARGET, "reached": reached}
    return shape(layers, rounds, steps, threads) | figures


def added_time(without: Sequence[Mapping[str, float]], memory: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The median over rounds of the share of time added, 0.03 for 3 %, and the rounds themselves."""
    shares: dict[str, Any] = {
        kind: paired_ratio([row[kind] for row in memory], [row[kind] for row in without]) - 1
        for kind in ("cpu_seconds", "wall_seconds")
    }
    pairs = zip(memory, without, strict=True)
    return shares | {"cpu_by_round": [round(a["cpu_seconds"] / b["cpu_seconds"] - 1, 4) for a, b in pairs]}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[4096, 2_000_000])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, dest="json_file")
    given = parser.parse_args()
    figures = json.dumps(measure(given.rows, given.layers, given.rounds, given.steps, given.threads, given.starts))
    if given.json_file is not None:
        given.json_file.write_text(figures + "\n", encoding="utf-8")
    print(figures)


if __name__ == "__main__":
    main()
