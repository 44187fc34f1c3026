"""The load is open-loop, stays on this machine, and its summary counts what happened."""

import asyncio
import time

import pytest
from typer.testing import CliRunner

from loadtest import open_loop
from loadtest.arrivals import poisson_arrivals
from loadtest.summary import Outcome, summarise


def test_arrivals_are_fixed_ascending_and_of_the_asked_rate() -> None:
    due = poisson_arrivals(50, 20, seed=3)
    assert due == poisson_arrivals(50, 20, seed=3) == sorted(due)
    assert due[0] > 0 and due[-1] < 20
    assert len(due) == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0)])
def test_an_empty_load_is_refused(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        poisson_arrivals(rate, seconds, 0)


def test_the_summary_counts_degraded_and_failed_apart() -> None:
    outcomes = [Outcome(0.1, 200, False), Outcome(0.3, 200, False), Outcome(9.0, 503, False), Outcome(0.1, 200, True)]
    summary = summarise(outcomes, seconds=2)
    assert summary["statuses"] == {"200": 3, "503": 1}
    assert summary["degraded"] == 1
    assert summary["goodput_per_second"] == 1.0
    assert summary["p50_ms"] == pytest.approx(200)


def test_latency_counts_from_the_due_time_though_the_server_is_slow_to_accept() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.2)
        body = b'{"degraded": false}'
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async def measure() -> dict[str, object]:
        server = await asyncio.start_server(slow, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        started = time.perf_counter()
        summary = await open_loop.run_load(f"http://127.0.0.1:{port}", ["1"], 40, 0.5, 0, 5)
        assert time.perf_counter() - started < 5
        server.close()
        return summary

    summary = asyncio.run(measure())
    assert summary["statuses"] == {"200": summary["requests"]}
    assert float(str(summary["p50_ms"])) >= 200


def test_load_is_never_sent_to_another_machine() -> None:
    import typer

    app = typer.Typer()
    app.command()(open_loop.main)
    result = CliRunner().invoke(app, ["--url", "http://192.0.2.1:80"])
    assert result.exit_code == 2
    assert "loopback" in result.output
