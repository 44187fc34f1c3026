"""A load is fixed beforehand, sent when it is due whatever became of it, and judged by what was offered."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from loadtest import playback
from loadtest.load_figures import holds, phase_figures, recovery_seconds, slopes
from loadtest.load_page import load_page
from loadtest.playback import Recording, Sample, Sent, play
from loadtest.serve import Steps
from loadtest.served_replica import ServedReplica
from loadtest.traffic import Call, Mix, Phase, plan

USERS = [f"u{n}" for n in range(100)]
PHASES = [Phase("low", 50.0, 20.0), Phase("high", 200.0, 10.0)]


def sent(due: float, latency: float = 0.1, status: int = 200, phase: str = "low") -> Sent:
    return Sent(Call(due, phase, "recommend", {}), latency, status)


def recorded(*outcomes: Sent) -> Recording:
    samples = [
        Sample(float(n), {"service-0": 10**6 + 10 * n, "engine-0": 10**7}, {"service-0": 0.1 * n, "engine-0": 0.5 * n},
               {"service-0": 20, "engine-0": 30})
        for n in range(31)
    ]  # fmt: skip
    return Recording(list(outcomes), samples)


def test_a_plan_follows_phases_mix_and_skew_and_returns_with_its_seed() -> None:
    calls = plan(PHASES, Mix(events=0.2, items=0.1), USERS, ["i"], seed=0)
    assert calls == plan(PHASES, Mix(events=0.2, items=0.1), USERS, ["i"], seed=0)
    assert calls != plan(PHASES, Mix(events=0.2, items=0.1), USERS, ["i"], seed=1)
    assert [call.due for call in calls] == sorted(call.due for call in calls)
    phases = Counter(call.phase for call in calls)
    assert abs(phases["low"] - 1000) < 150 and abs(phases["high"] - 2000) < 220
    kinds = Counter(call.kind for call in calls)
    assert abs(kinds["events"] / len(calls) - 0.2) < 0.05 and abs(kinds["items"] / len(calls) - 0.1) < 0.04
    users = Counter(call.body["user_id"] for call in calls if call.kind != "items")
    assert users["u0"] > 5 * users["u90"]
    ids = [call.body["item_id"] for call in calls if call.kind == "items"]
    assert len(set(ids)) == len(ids)
    with pytest.raises(ValueError, match="shares"):
        Mix(events=0.9, items=0.2)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def watch(*_: object) -> None: ...

    monkeypatch.setattr(playback, "_watch", watch)
    yield


async def test_a_slow_answer_delays_no_later_call(unwatched: None) -> None:
    """The omission that closed loops make: latency counts from when a call was due."""
    asked: list[float] = []
    loop = asyncio.get_running_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.append(loop.time())
        await asyncio.sleep(0.5)
        body = b'{"degraded": false}'
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    calls = [Call(0.01 * n, "p", "recommend", {"user_id": "u"}) for n in range(20)]
    recording = await play([ServedReplica(url, 0)], calls)
    server.close()
    assert len(recording.sent) == 20 and all(one.good and one.latency >= 0.5 for one in recording.sent)
    assert max(asked) < min(asked) + 20 * 0.5 / 2  # one after another would take ten seconds
    assert sum(later - earlier > 0.4 for earlier, later in pairwise(sorted(asked))) == 0


async def test_no_answer_is_an_outcome(unwatched: None) -> None:
    recording = await play([ServedReplica("http://127.0.0.1:9", 0)], [Call(0.0, "p", "recommend", {})])
    assert [(one.status, one.good) for one in recording.sent] == [(0, False)]


def test_phases_are_judged_by_what_was_offered() -> None:
    outcomes = [sent(n / 10) for n in range(90)] + [sent(9 + n / 10, status=503) for n in range(5)] + [sent(9.6, 2.0)]
    row = phase_figures(recorded(*outcomes), [Phase("low", 9.6, 10.0)], deadline=1.0)[0]
    assert (row["goodput_per_second"], row["good_share"], row["shed_share"]) == (9.0, 0.9375, 0.0521)
    assert row["p50_ms"] == 100.0 and row["p99_ms"] > 100.0  # the late answer counts, though it is not good
    assert row["engine_cores"] == pytest.approx(0.5) and row["service_cpu_ms_per_call"] == pytest.approx(
        1000 / 96, abs=0.01
    )
    assert not holds(row)
    assert holds(row | {"good_share": 0.96, "shed_share": 0.0})


def test_recovery_is_until_all_is_good_again() -> None:
    good = [sent(20 + n / 10) for n in range(100)]
    assert recovery_seconds(recorded(*good), 20.0, 1.0) == 0.0
    assert recovery_seconds(recorded(*good, sent(23.0, 3.0)), 20.0, 1.0) == pytest.approx(3.0)
    assert recovery_seconds(recorded(*good, sent(29.95, status=503)), 20.0, 1.0) == np.inf


def test_slopes_are_per_hour_and_skip_the_warm_up() -> None:
    found = slopes(recorded(), warm_up=10.0)
    assert found["service-0_memory_percent_per_hour"] == pytest.approx([3.6, 0.0], abs=0.01)
    assert found["engine-0_memory_percent_per_hour"] == pytest.approx([0, 0], abs=1e-6)
    assert found["service-0_files_percent_per_hour"] == pytest.approx([0, 0], abs=1e-6)


class Stretched:
    """Stands `most` calls a second; beyond, every tenth call is shed."""

    def __init__(self, most: float) -> None:
        self.most, self.rates = most, list[float]()

    async def play(self, phases: list[Phase]) -> Recording:
        (phase,) = phases
        self.rates.append(phase.rate)
        shed = 503 if phase.rate > self.most else 200
        return recorded(*(sent(n / 10, status=shed if n % 10 == 0 else 200, phase=phase.name) for n in range(100)))


async def test_steps_are_judged_one_by_one_and_laid_end_to_end() -> None:
    steps = Steps(Stretched(50.0), 10.0, 1.0)  # type: ignore[arg-type]
    assert [await steps.holds(rate) for rate in (40.0, 60.0)] == [True, False]
    assert [row["phase"] for row in steps.rows] == ["40.0/s", "60.0/s"]
    assert [steps.recording.sent[0].call.due, steps.recording.sent[100].call.due] == [0.0, 10.0]
    assert steps.recording.samples[31].at == 10.0


async def test_what_this_program_sent_late_is_told_and_counts(unwatched: None) -> None:
    recording = await play([ServedReplica("http://127.0.0.1:9", 0)], [Call(-0.2, "p", "recommend", {})])
    assert recording.sent[0].late >= 0.2 and recording.sent[0].latency >= 0.2


def test_the_page_opens_offline() -> None:
    outcomes = [sent(n / 10) for n in range(100)]
    recording = recorded(*outcomes)
    page = load_page("Load: steady", {"phases": phase_figures(recording, [Phase("low", 10.0, 10.0)], 1.0)}, recording)
    assert page.count("<svg") == 4 and "<script" not in page and 'src="' not in page
    assert "http" not in page.replace("http://www.w3.org/", "")
