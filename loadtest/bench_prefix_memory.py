"""What the prefix memory adds to fine-tuning: the same steps without it and with tables of several sizes, in turns.

The contenders are those of `bench_training`: one process each, rounds in a rotating order, ratios inside rounds. CPU
seconds of all threads are the cost. Tables beyond 100,000 rows have sparse gradients, as a recipe would ask for. Where
a process's memory happens to lie moves its speed by a few per cent for as long as it lives, so all are started anew
several times, and ``memory:0`` is the loop without memory once more: what it seems to add is the noise. Below that
noise the verdict is the memory's own CPU time: its forward and backward pass and optimiser step alone, beside a whole
step without it.

Shapes: B windows, N items, L levels, D model width.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from loadtest.bench_training import in_turns, medians, shape
from loadtest.engine.paired import middle, paired_ratio
from loadtest.training_contender import BATCH, CODES, HISTORY, LEVELS, MEMORY, WIDTH, codes, prefix_memory
from service.model.semantic_ids import SidSpace
from training.optimizer import MasterAdamW
from training.prefix_memory.base import memory_groups

TARGET = 0.03
ALONE_STEPS = 30
WITHOUT, NOISE = "ours", f"{MEMORY}0"


def measure(rows: Sequence[int], layers: int, rounds: int, steps: int, threads: int, starts: int = 1) -> dict[str, Any]:
    """Medians of every contender, and the share of time that each memory adds."""
    names = [WITHOUT, NOISE, *(f"{MEMORY}{count}" for count in rows)]
    begun = [in_turns(names, layers, rounds, steps, threads) for _ in range(starts)]
    measured = {name: [row for start in begun for row in start[name]] for name in names}
    contenders = {name: medians(measured[name]) for name in names}
    added = {name: added_time(measured[WITHOUT], measured[name]) for name in names[1:]}
    step = middle([row["cpu_seconds"] / steps for row in measured[WITHOUT]])
    own = {f"{MEMORY}{count}": own_cpu_seconds(count) for count in rows}
    told = {name: {"cpu_ms_a_step": 1000 * spent, "share_of_step": spent / step} for name, spent in own.items()}
    figures = {"starts": starts, "alone": told, "contenders": contenders, "added": added, "target": TARGET}
    figures["reached"] = all(row["share_of_step"] < TARGET for row in told.values())
    return shape(layers, rounds, steps, threads) | figures


def own_cpu_seconds(max_rows: int) -> float:
    """CPU seconds of the memory in a step: the median of forward, backward and optimiser on batches of random items."""
    memory, code_NL = prefix_memory(SidSpace(LEVELS, CODES, 0), max_rows), torch.from_numpy(codes())
    optimizer = MasterAdamW(memory_groups(memory, 1e-3), ALONE_STEPS, warmup=1)
    generator, spent = torch.Generator().manual_seed(0), []
    for _ in range(ALONE_STEPS):
        codes_BNL = code_NL[torch.randint(0, len(code_NL), (BATCH, HISTORY), generator=generator)]
        gradient_BNLD = torch.randn(BATCH, HISTORY, LEVELS, WIDTH, generator=generator).bfloat16()
        started = time.process_time()
        memory.item_embeddings(codes_BNL).backward(gradient_BNLD)  # type: ignore[no-untyped-call]
        optimizer.step()
        spent.append(time.process_time() - started)
    return middle(spent[1:])


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
    torch.set_num_threads(given.threads)
    figures = json.dumps(measure(given.rows, given.layers, given.rounds, given.steps, given.threads, given.starts))
    if given.json_file is not None:
        given.json_file.write_text(figures + "\n", encoding="utf-8")
    print(figures)


if __name__ == "__main__":
    main()
