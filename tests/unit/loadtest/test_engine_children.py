"""A child answers one line per line, tells errors from its end, and keeps what libraries print out of its answers."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.engine.child import serve
from loadtest.engine.contender import HOSTS, KIND_OF, Batch
from loadtest.engine.process import Child, ChildError, child_environment
from tests.unit.loadtest.engine_fakes import Parrot, open_host, spec

PARROT = "tests.unit.loadtest.parrot_child"
BATCH = Batch([[1, 2, 3], [4, 5, 6]], 2)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    with Child(spec(), tmp_path_factory.mktemp("child") / "log", PARROT) as running:
        yield running


def test_a_run_brings_answers_and_what_they_cost(child: Child) -> None:
    run = child.run("ours", BATCH)
    assert [answer.sids for answer in run.answers] == [((1, 2), (3, 4))] * 2
    assert run.answers[0].scores == (0.0, -1.0)
    assert run.wall_s > 0 and run.cpu_s >= 0 and run.rss_mib > 1


def test_a_fact_brings_its_value(child: Child) -> None:
    assert child.fact("double", number=21) == {"number": 42}


def test_an_error_in_a_command_is_one_line_and_not_the_childs_end(child: Child) -> None:
    with pytest.raises(ChildError, match=r"^ValueError: too wide \(see "):
        child.run("ours", Batch([[1]], 101))
    with pytest.raises(ChildError, match="KeyError"):
        child.run("theirs", BATCH)
    assert child.run("ours", BATCH).answers


def test_a_child_says_how_long_its_start_took(child: Child) -> None:
    assert child.start is not None
    assert child.start["ready"] and child.start["start_s"] >= 0


def test_a_child_that_cannot_start_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    broken = Child(spec(checkpoint="broken"), tmp_path / "log", PARROT)
    try:
        with pytest.raises(ChildError, match=f"code 1: RuntimeError: no such engine.*{tmp_path / 'log'}"):
            broken.wait_ready()
    finally:
        broken.close()


def test_commands_end_with_stop_and_close_the_host() -> None:
    commands = io.StringIO(json.dumps({"do": "stop"}) + "\n" + json.dumps({"do": "never read"}) + "\n")
    answers = io.StringIO()
    serve(open_host(spec()), commands, answers)
    assert json.loads(answers.getvalue()) == {"stopped": True}


def test_a_contender_is_prepared_before_each_run_and_only_the_run_is_timed() -> None:
    host = open_host(spec())
    commands = io.StringIO(json.dumps({"do": "run", "contender": "ours", "batch": BATCH.plain()}) + "\n")
    serve(host, commands, io.StringIO())
    parrot = host.contenders["ours"]
    assert isinstance(parrot, Parrot)
    assert [batch.beam for batch in parrot.prepared] == [2]


def test_every_contender_lives_in_a_known_kind_of_child() -> None:
    assert set(KIND_OF.values()) <= set(HOSTS)


def test_only_plain_vllm_runs_without_our_plug_in_and_engines_stay_in_their_process() -> None:
    plain, ours, served = (child_environment(spec(kind=kind)) for kind in ("plain", "ours", "served"))
    assert plain["VLLM_PLUGINS"] == "" and ours["VLLM_PLUGINS"] == "groundrec"
    assert plain["VLLM_ENABLE_V1_MULTIPROCESSING"] == ours["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert served.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0"
    assert {one["OMP_NUM_THREADS"] for one in (plain, ours, served)} == {"1"}
