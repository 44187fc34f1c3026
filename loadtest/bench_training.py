"""Fine-tuning throughput: ours beside Hugging Face's plain `Trainer`, on the same model shape, data and batch.

Each contender lives in a process of its own and takes its steps in turn (`training_contender.py`); the order rotates.
A figure is the median of the rounds, a ratio the median of the ratios inside rounds. CPU seconds of all threads are the
cost, as cores here are shared; wall time stands beside them.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.engine.paired import middle, paired_ratio
from loadtest.training_contender import BATCH, CODES, CONTENDERS, HISTORY, LEVELS, PREFIX

TARGET = 3.0


class Contender:
    """The parent's end of a contender's pipes."""

    def __init__(self, name: str, layers: int, steps: int, threads: int) -> None:
        command = [sys.executable, "-m", "loadtest.training_contender", name, str(layers), str(steps), str(threads)]
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self) -> dict[str, float]:
        """One round of steps.

        Raises:
            RuntimeError: the contender died; its reason is on standard error.
        """
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            raise RuntimeError(f"{self.name} said {line!r} and exit code {self._process.poll()}")
        figures: dict[str, float] = json.loads(line)
        return figures

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate()


def measure(layers: int, rounds: int, steps: int, threads: int) -> dict[str, Any]:
    """Medians and ratios of all contenders."""
    measured = in_turns(list(CONTENDERS), layers, rounds, steps, threads)
    told = shape(layers, rounds, steps, threads)
    return told | {"contenders": {name: medians(rows) for name, rows in measured.items()}} | _ratios(measured)


def in_turns(
    names: Sequence[str], layers: int, rounds: int, steps: int, threads: int
) -> dict[str, list[dict[str, float]]]:
    """What every contender needed in each round; the first round of each warms up and is not counted."""
    contenders = [Contender(name, layers, steps, threads) for name in names]
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    try:
        for number in range(rounds + 1):
            first = number % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                row = contender.round()
                if number:
                    measured[contender.name].append(row)
    finally:
        for contender in contenders:
            contender.close()
    return measured


def shape(layers: int, rounds: int, steps: int, threads: int) -> dict[str, Any]:
    """What was measured, for the figures' head."""
    model = {"layers": layers, "batch": BATCH, "history": HISTORY, "levels": LEVELS, "codes": CODES}
    return model | {"prefix": len(PREFIX), "threads": threads, "rounds": rounds, "steps_a_round": steps}


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One contender's figures over its rounds."""
    return {
        "tokens_per_cpu_second": middle([row["tokens"] / row["cpu_seconds"] for row in rows]),
        "cpu_seconds_per_1000_tokens": middle([1000 * row["cpu_seconds"] / row["tokens"] for row in rows]),
        "tokens_per_second": middle([row["tokens"] / row["wall_seconds"] for row in rows]),
    }


def _ratios(measured: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    ours = measured["ours"]
    ratios = {
        f"speedup_over_{name}": {
            kind: paired_ratio([row[kind] for row in rows], [row[kind] for row in ours])
            for kind in ("cpu_seconds", "wall_seconds")
        }
        for name, rows in measured.items()
        if name != "ours"
    }
    return {**ratios, "target": TARGET, "reached": ratios["speedup_over_trainer"]["cpu_seconds"] >= TARGET}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, dest="json_file")
    given = parser.parse_args()
    figures = json.dumps(measure(given.layers, given.rounds, given.steps, given.threads))
    if given.json_file is not None:
        given.json_file.write_text(figures + "\n", encoding="utf-8")
    print(figures)


if __name__ == "__main__":
    main()
