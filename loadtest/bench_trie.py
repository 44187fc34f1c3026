"""What the catalogue costs a beam, without any language model: ``python -m loadtest.bench_trie --json FILE``.

Every figure is process CPU time of one thread. A round runs each contender once, in turn; a row holds medians over the
rounds. ``*_ms`` of a search is the mean of its L steps for 400 beams (8 users of 50), selection included; what an
unconstrained beam pays for selection alone stands beside it, and the model's own part is nowhere in it.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from loadtest.trie_peers import DictBeam, NoConstraint, StaticBeam, masked_beam
from service.engine.base import BeamRequest, CatalogDelta, LegalSlots
from service.engine.catalog_versions import CatalogVersions
from service.model.beam import beam_search
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix

Result = TypeVar("Result")

USERS, WIDTH, LEVELS, CODES = 8, 50, 4, 256
NEW_SHARE, SIBLINGS, BATCH, BATCHES, SINGLES = 0.01, 16, 500, 4, 20
DICT_LIMIT = 10**6


class MadeUpModel:
    """A `BeamModel` whose answers cost nothing."""

    def __init__(self, logp_RK: Tensor) -> None:
        self._logp_RK = logp_RK

    def first(self) -> Tensor:
        """Float32 [U, K]."""
        return self._logp_RK[:USERS]

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        """Float32 [R, K]."""
        return self._logp_RK[: user_R.numel()]


def main(
    items: Annotated[str, typer.Option(help="catalogue sizes, separated by commas")] = "10000,100000,1000000,10000000",
    rounds: Annotated[int, typer.Option(min=3, help="interleaved rounds")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Measure and print one JSON object."""
    torch.set_num_threads(1)
    rows = [measure(int(count), rounds) for count in items.split(",")]
    line = json.dumps({"users": USERS, "width": WIDTH, "levels": LEVELS, "codes": CODES, "rows": rows})
    if json_file:
        json_file.write_text(line + "\n", encoding="utf-8")
    typer.echo(line)


def measure(items: int, rounds: int) -> dict[str, Any]:
    """One catalogue size."""
    random = np.random.default_rng(0)
    codes_NL = random.integers(0, CODES, (items, LEVELS), dtype=np.int16)
    built, build_s = _timed(lambda: CatalogVersions(codes_NL, CODES, keep=4))
    versions, trie = built, built.get(0)
    assert trie is not None
    row: dict[str, Any] = {"items": trie.num_leaves, "build_s": build_s, "bytes_per_item": trie.num_bytes / items}
    legal, row["filter_build_ms"] = _filter(versions, random)
    row |= _inserts(versions, codes_NL, random)
    row |= _searches(versions, codes_NL, legal, rounds)
    return {name: round(figure, 4) if isinstance(figure, float) else figure for name, figure in row.items()}


def _filter(versions: CatalogVersions, random: np.random.Generator) -> tuple[LegalSlots, float]:
    """Half of the SIDs, and the milliseconds of its first use."""
    trie = versions.get(0)
    assert trie is not None
    legal = LegalSlots.of("half", random.random(trie.num_slots) < 0.5)
    _, seconds = _timed(lambda: versions.query(BeamRequest((), WIDTH, 0, (), legal)))
    return legal, 1e3 * seconds


def _inserts(versions: CatalogVersions, codes_NL: NDArray[np.int16], random: np.random.Generator) -> dict[str, float]:
    """Single inserts, then batches; each new SID lies beside an item and brings a mixture. Ends at NEW_SHARE new."""
    single = [_apply(versions, codes_NL, random, 1) for _ in range(SINGLES)]
    batch = [_apply(versions, codes_NL, random, BATCH) for _ in range(BATCHES)]
    _apply(versions, codes_NL, random, max(1, int(NEW_SHARE * len(codes_NL)) - SINGLES - BATCH * BATCHES))
    versions.wait_for_compaction()
    return {"insert_ms": 1e3 * statistics.median(single), "inserts_per_s": BATCH / statistics.median(batch)}


def _apply(versions: CatalogVersions, codes_NL: NDArray[np.int16], random: np.random.Generator, count: int) -> float:
    near = codes_NL[random.integers(0, len(codes_NL), count)].astype(np.int64)
    near[:, -1] = random.integers(0, CODES, count)
    added: list[Sid] = [tuple(sid) for sid in near.tolist()]
    mix = SiblingMix(tuple(range(SIBLINGS)), (-float(np.log(SIBLINGS)),) * SIBLINGS)
    delta = CatalogDelta(versions.latest + 1, versions.latest, added, (), dict.fromkeys(added, mix))
    return _timed(lambda: versions.apply(delta))[1]


def _searches(
    versions: CatalogVersions, codes_NL: NDArray[np.int16], legal: LegalSlots, rounds: int
) -> dict[str, float]:
    """Milliseconds a step of every contender, and what of ours needs something special."""
    logp_RK = torch.log_softmax(2 * torch.randn(USERS * WIDTH, CODES, generator=torch.Generator().manual_seed(0)), -1)
    base = CatalogVersions(codes_NL, CODES, keep=1)
    trie = base.get(0)
    assert trie is not None
    seen = [tuple(sid) for sid in codes_NL[:50].tolist()]
    base.query(BeamRequest((), WIDTH, 0, (), legal))
    contenders: dict[str, Callable[[], object]] = {
        "selection_ms": lambda: masked_beam(NoConstraint(), logp_RK, USERS, WIDTH, LEVELS),
        "ours_ms": lambda: _search(base, BeamRequest((), WIDTH, 0), logp_RK),
        "ours_filtered_ms": lambda: _search(base, BeamRequest((), WIDTH, 0, (), legal), logp_RK),
        "ours_excluding_50_ms": lambda: _search(base, BeamRequest((), WIDTH, 0, seen), logp_RK),
        "ours_with_new_items_ms": lambda: _search(versions, BeamRequest((), WIDTH, versions.latest), logp_RK),
    }
    static = StaticBeam(trie.base)
    contenders["static_design_ms"] = lambda: masked_beam(static, logp_RK, USERS, WIDTH, LEVELS)
    if len(codes_NL) <= DICT_LIMIT:
        by_prefix = DictBeam(codes_NL)
        contenders["dict_ms"] = lambda: masked_beam(by_prefix, logp_RK, USERS, WIDTH, LEVELS)
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            spent[name].append(1e3 * _timed(run)[1] / LEVELS)
    return {name: statistics.median(times[1:]) for name, times in spent.items()}


def _search(versions: CatalogVersions, request: BeamRequest, logp_RK: Tensor) -> object:
    return beam_search(MadeUpModel(logp_RK), [versions.query(request) for _ in range(USERS)])


def _timed(run: Callable[[], Result]) -> tuple[Result, float]:
    began = time.process_time()
    result = run()
    return result, time.process_time() - began


if __name__ == "__main__":
    typer.run(main)
