"""What every engine is: one call per user, a catalogue it follows, a canary, an end.

The service knows engines only through this protocol. Everything that crosses into an engine is defined here as plain
integers, floats and bytes, because vLLM's engine lives in another process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.model.legal_slots import LegalSlots as LegalSlots
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix


@dataclass(frozen=True, slots=True)
class BeamRequest:
    """Ask for the best SIDs after a prompt.

    Attributes:
        prompt_ids: the prompt's token ids.
        beam_width: SIDs kept per level, >= 1.
        catalog_version: the version the request was admitted under.
        excluded: SIDs that must not be returned.
        legal: the SIDs that may be returned, None for all.
        num_results: how many SIDs are wanted, None for as many as the beam is wide.
        deadline: `time.monotonic` seconds after which nobody waits for the answer, None for never.
    """

    prompt_ids: Sequence[int]
    beam_width: int
    catalog_version: int
    excluded: Sequence[Sid] = ()
    legal: LegalSlots | None = None
    num_results: int | None = None
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class EngineCost:
    """Where an answer's time went, in seconds: until the engine took it in, its prompt, its levels.

    The prompt's share holds what it waited for others of the same step; ``cached_tokens`` of it were not computed.
    """

    wait_seconds: float
    prefill_seconds: float
    decode_seconds: float
    cached_tokens: int

    def attributes(self) -> dict[str, float | int]:
        """For people, in milliseconds."""
        return {
            "wait_ms": round(1000 * self.wait_seconds, 3),
            "prefill_ms": round(1000 * self.prefill_seconds, 3),
            "decode_ms": round(1000 * self.decode_seconds, 3),
            "cached_tokens": self.cached_tokens,
        }


@dataclass(frozen=True, slots=True)
class BeamAnswer:
    """SIDs best first, their log-probabilities (non-increasing) and the log-probability of each level.

    ``exact`` says that every legal SID was scored, so that there is no beam error; ``beam_width`` is the width that was
    used when load shrank it, else None; ``cost`` is None where an engine does not tell.
    """

    sids: tuple[Sid, ...]
    scores: tuple[float, ...]
    level_scores: tuple[tuple[float, ...], ...]
    exact: bool = False
    beam_width: int | None = None
    cost: EngineCost | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CatalogDelta:
    """The change from version ``previous`` to ``version``, which is greater but need not be the next integer.

    Attributes:
        version: how many log entries are applied; equal on all replicas.
        previous: the version this changes.
        added: SIDs that have items now and had none; one that never had a slot takes the next, in this order.
        removed: SIDs without items now.
        smoothing: the mixtures of the nodes this delta touches, each replacing an older one for the same prefix.
    """

    version: int
    previous: int
    added: Sequence[Sid] = ()
    removed: Sequence[Sid] = ()
    smoothing: Mapping[Sid, SiblingMix] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """New embedding rows of one SID token, D floats each: the input side and the output side.

    With a tied head both are the same row in the checkpoint; an engine keeps them apart from the first difference on.
    """

    level: int
    code: int
    input_D: Sequence[float]
    output_D: Sequence[float]


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine holds (requests, KV blocks that none of them holds, catalogue) and has done since its start."""

    unfinished: int
    free_blocks: int
    answered: int
    prompt_tokens: int
    cached_tokens: int
    trie_bytes: int


class Engine(Protocol):
    """A running engine; it starts at catalogue version 0, the checkpoint's own."""

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """The best SIDs; cancelling the call frees what it holds.

        Raises:
            EngineError: the engine failed or is gone.
            UnknownVersionError: the catalogue version is no longer held.
            DeadlineError: the request's deadline passed before its answer existed.
        """
        ...

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """Make the next version known; requests may name it once this returns. A version already held stays as it is.

        Raises:
            EngineError: the engine failed or is gone, or the delta's ``previous`` is not its latest version.
        """
        ...

    async def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        """Put new embedding rows into the running engine and forget cached KV that could have seen the old ones.

        Raises:
            EngineError: the engine failed or is gone, or a row does not fit its model.
        """
        ...

    async def statistics(self) -> EngineStatistics:
        """What it holds and has done.

        Raises:
            EngineError: the engine failed or is gone.
        """
        ...

    async def canary(self) -> None:
        """Prove that the engine still decodes: one fixed prompt, end to end.

        Raises:
            EngineError: it does not.
        """
        ...

    async def gone(self) -> None:
        """Return once the engine can never answer again; while it can, and for an engine that cannot end, never."""
        ...

    async def close(self) -> None:
        """Stop and free everything."""
        ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the service tells an engine at its start.

    ``smoothing_boost`` multiplies the borrowed probability of items newer than the model; ``versions_kept`` is how many
    catalogue versions a running request may still name, ``prefill_tokens`` how many prompt tokens one step may compute
    (longer prompts are cut into chunks). ``compile`` trades a slower start for faster steps; what it makes is kept in
    the folder ``compile_cache``. ``tensor_parallel`` is over how many GPUs one model is spread.
    """

    dtype: str
    max_batch_users: int
    kv_cache_gib: float
    omp_threads: int
    smoothing_boost: float
    versions_kept: int = 8
    prefill_tokens: int = 2048
    compile: bool = False
    compile_cache: str | None = None
    tensor_parallel: int = 1
