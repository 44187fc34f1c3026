import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from service.logs import configure_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_our_lines_and_those_of_libraries_are_json_with_the_request_id(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        structlog.get_logger().info("request", status=200)
        logging.getLogger("uvicorn.error").warning("from %s", "uvicorn")
    structlog.get_logger().debug("unseen")
    captured = capsys.readouterr()
    ours, theirs = [json.loads(line) for line in captured.err.splitlines()]
    assert (ours["event"], ours["status"], ours["level"], ours["request_id"]) == ("request", 200, "info", "r-1")
    assert (theirs["event"], theirs["level"], theirs["request_id"]) == ("from uvicorn", "warning", "r-1")
    assert captured.out == ""


def test_a_traceback_shows_no_values_of_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    private = "secret"
    try:
        raise ValueError(len(private))
    except ValueError as error:
        structlog.get_logger().error("internal_error", exc_info=error)
    line = json.loads(capsys.readouterr().err)
    assert "ValueError: 6" in line["exception"] and "secret" not in line["exception"]
