"""The sections of a run: each measures one part with children and returns its rows. No files, no judging.

Contenders of a cell take turns, in an order that rotates from round to round. What they answer is checked before it
counts: an illegal SID from a constrained contender, or a ranking of ours in fp32 that is not the witness's, ends the
run, for figures of wrong answers are worth nothing.

Shapes: N SIDs, L levels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.engine.contender import KIND_OF, Answer, Batch
from loadtest.engine.grid import Cell, World
from loadtest.engine.paired import middle, paired_ratio
from loadtest.engine.process import Child, Run
from loadtest.engine.prompts import history_prompts, legal_mask
from loadtest.engine.rows import Row
from loadtest.engine.sorted_sids import SortedSids
from service.errors import GroundrecError
from service.model.checkpoint import Checkpoint

UNCONSTRAINED = {"vllm_beam", "line"}
SCORE_TOLERANCE = 2e-3
INSERTS = 32
BULK = 10_000

StartChild = Callable[[str, str], Child]


class WrongAnswerError(GroundrecError):
    """A contender answered what it must not; the run ends."""


@dataclass(frozen=True, slots=True)
class Arena:
    """A world in one mode while its children run; on a GPU ``by_wall``, for its work is no process's CPU time."""

    checkpoint: Checkpoint
    sids: SortedSids
    codes_NL: NDArray[np.integer]
    children: Mapping[str, Child]
    by_wall: bool = False

    def seconds(self, run: Run) -> float:
        """What a run cost."""
        return run.wall_s if self.by_wall else run.cpu_s

    def run(self, contender: str, batch: Batch) -> Run:
        """One measured run."""
        return self.children[KIND_OF[contender]].run(contender, batch)

    def prompts(self, users: int, tokens: int, seed: int) -> list[list[int]]:
        """Fresh prompts."""
        random = np.random.default_rng(seed)
        return history_prompts(self.checkpoint.space, self.codes_NL, users, tokens, random)


@contextmanager
def open_arena(
    checkpoint: Checkpoint, start: StartChild, contenders: Sequence[str], mode: str, *, by_wall: bool = False
) -> Iterator[Arena]:
    """Start the children that the contenders need, and warm each contender up with a small batch."""
    codes_NL = checkpoint.catalog_tensors().codes_NL
    with ExitStack() as stack:
        children = {}
        for kind in dict.fromkeys(KIND_OF[contender] for contender in contenders):
            # one start after another: together they would need the memory of all at its peak
            children[kind] = stack.enter_context(start(kind, "eager" if kind == "torch" else mode))
        arena = Arena(checkpoint, SortedSids(codes_NL, checkpoint.space), codes_NL, children, by_wall)
        for contender in contenders:
            arena.run(contender, Batch(arena.prompts(2, 40, 0), 4))
        yield arena


def measure_cell(arena: Arena, cell: Cell) -> list[Row]:
    """One row per contender: its cost in milliseconds per user and wall milliseconds per batch, a value a round.

    Raises:
        WrongAnswerError: a constrained contender returned a SID that does not exist, or too few.
    """
    runs: dict[str, list[Run]] = {name: [] for name in cell.contenders}
    illegal: dict[str, float] = {}
    for turn in range(cell.rounds):
        batch = Batch(arena.prompts(cell.batch, cell.prompt, 1 + turn), cell.beam)
        for name in rotated(cell.contenders, turn):
            run = arena.run(name, batch)
            illegal[name] = check_answers(name, run.answers, batch, arena.sids)
            runs[name].append(run)
    return [_row(arena, cell, name, found, illegal[name]) for name, found in runs.items()]


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round."""
    at = turn % len(names)
    return [*names[at:], *names[:at]]


def check_answers(name: str, answers: Sequence[Answer], batch: Batch, sids: SortedSids) -> float:
    """The share of SIDs that do not exist, 0 for every constrained contender.

    Raises:
        WrongAnswerError: there are illegal, repeated or too few SIDs, or scores that rise.
    """
    share = sids.illegal_share([sid for answer in answers for sid in answer.sids])
    if name in UNCONSTRAINED:
        return share
    if len(answers) != len(batch.prompts) or share > 0:
        raise WrongAnswerError(f"{name}: {len(answers)} answers to {len(batch.prompts)} users, {share:.1%} illegal")
    wanted = min(batch.beam, len(sids)) if batch.legal_share >= 1 else 1
    for answer in answers:
        if len(set(answer.sids)) != len(answer.sids) or len(answer.sids) < wanted:
            raise WrongAnswerError(
                f"{name}: {len(set(answer.sids))} different SIDs of {len(answer.sids)}, {wanted} due"
            )
        if any(later > before + 1e-4 for before, later in zip(answer.scores, answer.scores[1:], strict=False)):
            raise WrongAnswerError(f"{name}: scores rise within an answer")
    return 0.0


def measure_agreement(arena: Arena, cell: Cell) -> list[Row]:
    """Rank the same prompts with ours and the witness; they must agree, ties within the tolerance aside.

    Raises:
        WrongAnswerError: they do not.
    """
    batch = Batch(arena.prompts(cell.batch, cell.prompt, 99), cell.beam)
    ours, witness = arena.run("ours", batch).answers, arena.run("torch_loop", batch).answers
    apart = [disagreement(one, other) for one, other in zip(ours, witness, strict=True)]
    if max(apart) > SCORE_TOLERANCE:
        raise WrongAnswerError(f"ours and the torch loop differ by {max(apart):.3g} in log-probability in fp32")
    same = sum(one.sids == other.sids for one, other in zip(ours, witness, strict=True))
    row = {"users": len(ours), "beam": cell.beam, "same_ranking": same, "largest_difference": max(apart)}
    return [{"cell": cell.name, **row}]


def disagreement(one: Answer, other: Answer) -> float:
    """The largest difference of the scores rank by rank, and of the scores of SIDs that both name."""
    if len(one.sids) != len(other.sids):
        return float("inf")
    by_rank = [abs(a - b) for a, b in zip(one.scores, other.scores, strict=True)]
    known = dict(zip(other.sids, other.scores, strict=True))
    by_sid = [abs(score - known[sid]) for sid, score in zip(one.sids, one.scores, strict=True) if sid in known]
    return max([*by_rank, *by_sid], default=0.0)


def measure_costs(arena: Arena, cell: Cell) -> list[Row]:
    """Filters, the prefix cache and the profile of ours around one cell."""
    figures = {**_filters(arena, cell), **_prefix_cache(arena, cell)}
    profile = arena.children["ours"].fact(
        "profile", batch=Batch(arena.prompts(cell.batch, cell.prompt, 77), cell.beam).plain()
    )
    figures["prefix_memory_share"] = profile.get("prefix memory", 0.0)
    figures["trie_share"] = profile.get("trie", 0.0)
    rows: list[Row] = [{"mode": cell.mode, "figure": name, "value": value} for name, value in figures.items()]
    return [*rows, {"mode": cell.mode, "figure": "profile", "value": profile}]


def _filters(arena: Arena, cell: Cell) -> dict[str, float]:
    """Half of the SIDs legal: the request over the unfiltered one, with a rule met before and with a new one."""
    spent: dict[str, list[float]] = {"unfiltered": [], "known": [], "fresh": []}
    keys = {"known": "rule", "fresh": "fresh"}
    known = Batch(arena.prompts(1, cell.prompt, 1), cell.beam, 0.5, "rule")
    arena.run("ours", known)
    for turn in range(cell.rounds):
        prompts = arena.prompts(cell.batch, cell.prompt, 50 + turn)
        for name in rotated(list(spent), turn):
            key = f"{keys.get(name, '')}{turn if name == 'fresh' else ''}"
            batch = Batch(prompts, cell.beam, 1.0 if name == "unfiltered" else 0.5, key)
            run = arena.run("ours", batch)
            _check_filter(run.answers, batch, arena.sids)
            spent[name].append(arena.seconds(run))
    return {
        "filtered_ratio": paired_ratio(spent["known"], spent["unfiltered"]),
        "fresh_filter_ratio": paired_ratio(spent["fresh"], spent["unfiltered"]),
    }


def _check_filter(answers: Sequence[Answer], batch: Batch, sids: SortedSids) -> None:
    check_answers("ours", answers, batch, sids)
    if batch.legal_share < 1:
        mask_N = legal_mask(batch.legal_share, batch.legal_key, len(sids))
        slots = sids.slots([sid for answer in answers for sid in answer.sids])
        if not mask_N[slots].all():
            raise WrongAnswerError("ours: a filtered request returned a SID that its filter forbids")


def _prefix_cache(arena: Arena, cell: Cell) -> dict[str, float]:
    """The same users again, one item later, against the same prompts without a cache and against plain prefill."""
    cold, warm, prefill = [], [], []
    levels = arena.checkpoint.space.levels
    for turn in range(cell.rounds):
        later = arena.prompts(cell.batch, cell.prompt, 20 + turn)
        earlier = [prompt[:-levels] for prompt in later]
        prefill.append(arena.seconds(arena.run("line", Batch(later, 0))))
        cold.append(arena.seconds(arena.run("ours", Batch(later, cell.beam))))
        arena.run("ours", Batch(earlier, cell.beam))
        warm.append(arena.seconds(arena.run("ours", Batch(later, cell.beam, keep_cache=True))))
    decode = middle(cold) - middle(prefill)
    return {
        "prefill_saved": paired_ratio([c - w for c, w in zip(cold, warm, strict=True)], prefill),
        "returning_ratio": paired_ratio(warm, cold),
        "prefill_ms_per_batch": middle(prefill) * 1e3,
        "decode_ms_per_batch": decode * 1e3,
    }


def measure_constraint(child: Child, items: int, users: int = 8, beam: int = 50, rounds: int = 15) -> list[Row]:
    """The constraint alone at one catalogue size."""
    return [{"items": items, **child.fact("cost", items=items, users=users, beam=beam, rounds=rounds)}]


def measure_served(
    start: StartChild, checkpoint: Checkpoint, world: World, mode: str, clock: Callable[[], float]
) -> list[Row]:
    """The start of the engine as the service starts it and, eager only, inserts."""
    began = clock()
    with start("served", mode) as child:
        figures: dict[str, float] = {"start_s": clock() - began}
        if mode == "eager":
            figures |= _inserts(child, checkpoint)
    return [{"mode": mode, "world": world.name, "figure": name, "value": value} for name, value in figures.items()]


def _inserts(child: Child, checkpoint: Checkpoint) -> dict[str, float]:
    sids = SortedSids(checkpoint.catalog_tensors().codes_NL, checkpoint.space)
    new = unused_sids(sids, INSERTS + BULK, seed=5)
    waits: list[float] = child.fact("insert", sids=new[:INSERTS])["visible_ms"]
    bulk = child.fact("bulk", sids=new[INSERTS:])
    return {"insert_ms": middle(waits), "insert_ms_worst": max(waits), "inserts_per_second": bulk["per_second"]}


def unused_sids(sids: SortedSids, count: int, seed: int) -> list[list[int]]:
    """``count`` different SIDs that do not exist."""
    random = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        drawn = [tuple(row) for row in random.integers(0, sids.codes, (count, sids.levels)).tolist()]
        found |= {sid: None for sid, slot in zip(drawn, sids.slots(drawn), strict=True) if slot < 0}
    return [list(sid) for sid in list(found)[:count]]


def _row(arena: Arena, cell: Cell, name: str, runs: Sequence[Run], illegal: float) -> Row:
    row: dict[str, Any] = {
        "world": cell.world.name,
        "mode": cell.mode,
        "batch": cell.batch,
        "beam": cell.beam,
        "prompt": cell.prompt,
        "contender": name,
        "cost_ms": [round(arena.seconds(run) * 1e3 / cell.batch, 3) for run in runs],
        "wall_ms": [round(run.wall_s * 1e3, 3) for run in runs],
        "rss_mib": round(max(run.rss_mib for run in runs)),
    }
    return row | ({"illegal_share": round(illegal, 4)} if name == "vllm_beam" else {})
