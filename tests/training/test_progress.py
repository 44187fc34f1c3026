"""A terminal gets bars, everything else gets lines with the time left."""

import io

import pytest
from rich.console import Console

from training.progress import QuietReporter, Reporter


def test_lines_where_there_is_no_terminal() -> None:
    shown = io.StringIO()
    reporter = Reporter(Console(file=shown, width=80))
    with reporter.task("embed") as progress:
        for done in range(1, 101):
            progress(done, 100)
    reporter.say("[bold] is not markup")
    assert shown.getvalue().splitlines() == ["embed 100/100, 0 s, 0 s left", "[bold] is not markup"]


def test_a_bar_on_a_terminal() -> None:
    shown = io.StringIO()
    with Reporter(Console(file=shown, width=120, force_terminal=True)).task("embed") as progress:
        progress(3, 3, "loss 1.5")
    assert "3/3" in shown.getvalue() and "loss 1.5" in shown.getvalue()


def test_the_quiet_one_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = QuietReporter()
    with reporter.task("embed") as progress:
        progress(1, 2)
    reporter.say("nothing")
    assert capsys.readouterr() == ("", "")
