"""Logging: one JSON object a line on stderr, with the request's id.

No user, item or body is ever logged, but the ``context`` that a client wants recorded with its recommendation.
Libraries that use `logging` (uvicorn, vLLM) pass through the same formatter, so a reader parses one format.
"""

import logging
import sys

import structlog


def configure_logs(level: str) -> None:
    """Send structlog and `logging` to stderr as JSON lines."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for chatty in ("httpx", "sentence_transformers", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
