"""What was shown, and what users did about it, on its way into the feedback log.

An answer never waits for its record: records go through a bounded queue and are written in the background; what does
not fit, or cannot be written, is counted as lost. Events are written before they are acknowledged. The metrics count
both by the model that made the recommendation; it decides nothing about histories.
"""

import asyncio
import time
from collections.abc import Sequence

import structlog

from service.circuit import Circuit
from service.errors import StorageError, StorageFullError
from service.metrics import Metrics
from service.recommendation import Recommendation, RecommendQuery, model_of
from service.stores.feedback import FeedbackEvent, FeedbackLog, ServedRecommendation

QUEUE = 10_000
PER_TRIP = 500
FOREIGN_MODELS = 8  # versions other replicas serve that get a label of their own; more would let ids fill the metrics


class Feedback:
    """Writes both logs and counts."""

    def __init__(self, log: FeedbackLog, metrics: Metrics, circuit: Circuit, own_models: Sequence[str]) -> None:
        self._log, self._metrics, self._circuit = log, metrics, circuit
        self._waiting: asyncio.Queue[ServedRecommendation] = asyncio.Queue(QUEUE)
        self._models = set(own_models)
        self._room = len(self._models) + FOREIGN_MODELS

    def served(self, query: RecommendQuery, answer: Recommendation, fallback: str | None) -> None:
        """Count an answer and queue its record."""
        self._metrics.served.labels(answer.model_version).inc(len(answer.items))
        record = ServedRecommendation(
            answer.recommendation_id,
            time.time(),
            answer.model_version,
            answer.catalog_version,
            tuple(item.item_id for item in answer.items),
            query.user_id,
            fallback,
            query.context,
        )
        try:
            self._waiting.put_nowait(record)
        except asyncio.QueueFull:
            self._metrics.feedback_lost.inc()

    async def add(self, events: Sequence[FeedbackEvent]) -> None:
        """Write events.

        Raises:
            StorageError: not acknowledged; all of it can be repeated.
        """
        with self._circuit.call(StorageError, answers=(StorageFullError,)):
            await self._log.add_events(events)

    def count(self, events: Sequence[FeedbackEvent]) -> None:
        """Credit events to the models whose recommendations they name."""
        for event in events:
            if event.recommendation_id is not None:
                self._metrics.feedback.labels(self._label(event.recommendation_id), event.event).inc()

    async def erase(self, user_id: str) -> int:
        """Delete a user's entries, those still on their way from here included; how many were in the log.

        Raises:
            StorageError: not acknowledged; the call can be repeated.
        """
        for _ in range(self._waiting.qsize()):
            record = self._waiting.get_nowait()
            if record.user_id != user_id:
                self._waiting.put_nowait(record)
        with self._circuit.call(StorageError):
            return await self._log.erase(user_id)

    async def run(self) -> None:
        """Write what waits, for ever."""
        while True:
            batch = [await self._waiting.get()]
            while self._waiting.qsize() and len(batch) < PER_TRIP:
                batch.append(self._waiting.get_nowait())
            await self._write(batch)

    async def flush(self) -> None:
        """Write what waits, at the end of the service."""
        while self._waiting.qsize():
            batch = [self._waiting.get_nowait() for _ in range(min(PER_TRIP, self._waiting.qsize()))]
            await self._write(batch)

    async def _write(self, batch: Sequence[ServedRecommendation]) -> None:
        try:
            with self._circuit.call(StorageError, answers=(StorageFullError,)):
                await self._log.add_served(batch)
        except StorageError as error:
            self._metrics.feedback_lost.inc(len(batch))
            structlog.get_logger().warning("feedback_lost", recommendations=len(batch), fault=error.detail)

    def _label(self, recommendation_id: str) -> str:
        model = model_of(recommendation_id)
        if model and model not in self._models and len(self._models) < self._room:
            self._models.add(model)
        return model if model in self._models else "other"
