"""Whether requests are traced, decided once at the start; OpenTelemetry is imported only if they are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.errors import SettingsError
from service.settings import Settings
from service.tracing import NoTracing, Tracing


@asynccontextmanager
async def open_tracing(settings: Settings) -> AsyncIterator[Tracing]:
    """Where spans go while the block runs.

    Raises:
        SettingsError: traces are wanted, and OpenTelemetry is not installed.
    """
    if not settings.traces:
        yield NoTracing()
        return
    check_tracing(settings)
    from service.otel_tracing import otlp_tracing

    tracing = otlp_tracing(settings)
    try:
        yield tracing
    finally:
        await tracing.close()


def check_tracing(settings: Settings) -> None:
    """Find out whether what traces need is installed.

    Raises:
        SettingsError: it is not.
    """
    if not settings.traces:
        return
    try:
        import service.otel_tracing  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            f"traces is true and OpenTelemetry is not installed ({error}); install the extra: "
            "pip install 'groundrec[otel]', or set traces to false"
        ) from None
