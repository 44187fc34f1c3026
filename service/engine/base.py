"""What every engine is: one call per user, a catalogue it follows, a canary, an end.

The service knows engines only through this protocol. Everything that crosses into an engine is defined here as plain
integers and floats, because vLLM's engine lives in another process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix


@dataclass(frozen=True, slots=True)
class BeamRequest:
    """Ask for the best SIDs after a prompt.

    ``excluded`` are SIDs that must not be returned; ``catalog_version`` is the version the request was admitted under.
    """

    prompt_ids: Sequence[int]
    beam_width: int
    catalog_version: int
    excluded: Sequence[Sid] = ()


@dataclass(frozen=True, slots=True)
class BeamAnswer:
    """SIDs best first, their log-probabilities (non-increasing) and the log-probability of each level."""

    sids: tuple[Sid, ...]
    scores: tuple[float, ...]
    level_scores: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class CatalogDelta:
    """The change from version ``version - 1`` to ``version``.

    ``added`` are SIDs (of items newer than the model), ``removed`` SIDs without items; ``smoothing`` is the complete
    set of sibling mixtures of all nodes newer than the model, not a change to it.
    """

    version: int
    added: Sequence[Sid] = ()
    removed: Sequence[Sid] = ()
    smoothing: Mapping[Sid, SiblingMix] = field(default_factory=dict)


class Engine(Protocol):
    """A running engine; it starts at catalogue version 0, the checkpoint's own."""

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """The best SIDs; cancelling the call frees what it holds.

        Raises:
            EngineError: the engine failed or is gone.
            UnknownVersionError: the catalogue version is no longer held.
        """
        ...

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """Make the next version known; requests may name it once this returns.

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

    async def close(self) -> None:
        """Stop and free everything."""
        ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the service tells an engine at its start.

    ``smoothing_boost`` multiplies the borrowed probability of items newer than the model; ``versions_kept`` is how many
    catalogue versions a running request may still name, ``prefill_tokens`` how many prompt tokens one step may compute
    (longer prompts are cut into chunks).
    """

    dtype: str
    max_batch_users: int
    kv_cache_gib: float
    omp_threads: int
    smoothing_boost: float
    versions_kept: int = 8
    prefill_tokens: int = 2048
