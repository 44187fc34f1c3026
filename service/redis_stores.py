"""Stores of users' data in Redis, with the settings' bounds or, for commands without settings, their defaults."""

from typing import Any

from service.settings import Settings
from service.stores.redis_feedback import RedisFeedback
from service.stores.redis_history import RedisHistory

WRITE_SECONDS = 2.0


def redis_history(
    settings: Settings | None = None, url: str | None = None, *, timeout_seconds: float = WRITE_SECONDS
) -> RedisHistory:
    """Histories at ``url``, else where the settings say. Readers bring time limits of their own."""
    return RedisHistory(
        url or _url(settings),
        timeout_seconds=timeout_seconds,
        max_items=_bound(settings, "history_max_items"),
        ttl_days=_bound(settings, "history_ttl_days"),
    )


def redis_feedback(
    settings: Settings | None = None, url: str | None = None, *, timeout_seconds: float = WRITE_SECONDS
) -> RedisFeedback:
    """The feedback log at ``url``, else where the settings say."""
    entries = _bound(settings, "feedback_max_entries")
    return RedisFeedback(url or _url(settings), timeout_seconds=timeout_seconds, max_entries=entries)


def _url(settings: Settings | None) -> str:
    found = settings.redis_url if settings else Settings.model_fields["redis_url"].default
    return str(found.get_secret_value())


def _bound(settings: Settings | None, name: str) -> Any:
    return getattr(settings, name) if settings else Settings.model_fields[name].default
