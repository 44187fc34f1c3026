"""The Dockerfile keeps its promises, and what reproduces it without Docker reads it rightly."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy"))

from dockerfile_steps import Copy, DockerfileError, Run, closure, read_stages  # noqa: E402

STAGES = read_stages(ROOT / "Dockerfile", {"PIP_EXTRA_INDEX_URL": "file:///wheels"})
SERVED = ("cpu", "gpu-jit", "runtime")


def text(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "Dockerfile"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("name", SERVED)
def test_a_served_image_runs_the_service_as_a_numeric_user(name: str) -> None:
    stage = STAGES[name]
    assert stage.command == ["groundrec", "serve"]
    assert stage.user == "10001:10001"
    assert stage.about["STOPSIGNAL"] == "SIGTERM"
    assert "/health/live" in stage.about["HEALTHCHECK"]


@pytest.mark.parametrize("name", SERVED)
def test_what_a_served_image_writes_goes_to_tmp(name: str) -> None:
    environment = STAGES[name].environment
    places = [value for key, value in environment.items() if value.startswith("/") and key != "PATH"]
    assert {place.split("/")[1] for place in places} <= {"tmp", "data"}
    assert environment["HOME"] == "/tmp"
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["PATH"].startswith("/venv/bin:")


@pytest.mark.parametrize("name", ["cpu", "runtime"])
def test_no_compiler_is_installed_where_the_service_runs(name: str) -> None:
    installed = [step.command for step in STAGES[name].steps + STAGES["base"].steps if isinstance(step, Run)]
    assert not [command for command in installed if "gcc" in command or "build-essential" in command]


@pytest.mark.parametrize("name", SERVED)
def test_packages_come_from_a_hashed_lock_alone(name: str) -> None:
    stages = closure(STAGES, name)
    commands = [step.command for stage in stages for step in stage.steps if isinstance(step, Run)]
    from_lock, own = [command for command in commands if " pip install" in command]
    assert "--no-deps --require-hashes -r lock.txt" in from_lock
    assert "--no-deps --no-build-isolation --no-index ." in own
    copied = {source for stage in stages for step in stage.steps if isinstance(step, Copy) for source in step.sources}
    assert f"deploy/locks/serve-{'cpu' if name == 'cpu' else 'gpu'}.txt" in copied


@pytest.mark.parametrize("name", SERVED)
def test_the_image_takes_the_environment_and_nothing_else_from_its_build(name: str) -> None:
    copies = [step for step in STAGES[name].steps if isinstance(step, Copy)]
    assert [(copy.sources, copy.target) for copy in copies] == [(("/venv",), "/venv")]
    assert copies[0].stage in STAGES


def test_the_default_target_is_the_gpu_image() -> None:
    assert list(STAGES)[-1] == "runtime"


def test_the_base_is_pinned_and_can_be_pinned_by_digest() -> None:
    assert STAGES["build"].parent == "python:3.11.14-slim-bookworm"
    digest = "python@sha256:" + "a" * 64
    assert read_stages(ROOT / "Dockerfile", {"PYTHON_IMAGE": digest})["base"].parent == digest


def test_everything_that_is_copied_is_in_the_build_context() -> None:
    context = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = [line[1:] for line in context if line.startswith("!")]
    steps = [step for stage in STAGES.values() for step in stage.steps if isinstance(step, Copy) and not step.stage]
    for source in {source for step in steps for source in step.sources}:
        assert (ROOT / source).exists()
        assert any(source == place or source.startswith(f"{place}/") for place in allowed), source


def test_variables_arguments_and_inheritance_are_followed(tmp_path: Path) -> None:
    first = ["ARG BASE=debian:12", "FROM ${BASE} AS one", "ENV A=1 PATH=/x:$PATH", "ARG B=two", "WORKDIR /src"]
    second = ["RUN echo $A \\", "    && echo ${B}", "FROM one AS two", 'ENTRYPOINT ["a"]', "USER 7:7", 'CMD ["b"]']
    stages = read_stages(text(tmp_path, *first, *second), {"B": "given"})
    assert stages["one"].parent == "debian:12"
    run = stages["one"].steps[0]
    assert isinstance(run, Run)
    assert (run.command, run.folder, run.user) == ("echo $A && echo ${B}", "/src", "0:0")
    assert run.environment["B"] == "given"
    two = stages["two"]
    assert (two.parent, two.user, two.folder, two.command) == ("one", "7:7", "/src", ["a", "b"])
    assert two.environment["PATH"].startswith("/x:/usr/local/sbin")
    assert "B" not in two.environment


def test_a_target_brings_the_stages_it_copies_from(tmp_path: Path) -> None:
    file = text(tmp_path, "FROM a AS b", "FROM a AS unused", "FROM a AS c", "COPY --from=b /x /x")
    assert [stage.name for stage in closure(read_stages(file, {}), "c")] == ["b", "c"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["FROM a"], "write FROM image AS name"),
        (["FROM a AS b", "ADD x y"], "ADD is not understood"),
        (["FROM a AS b", "RUN --mount=type=cache x"], "only the plain shell form"),
        (["FROM a AS b", "COPY --chown=1 x y"], "only --from is understood"),
        (["FROM a AS b", 'SHELL ["x"]'], "SHELL is not understood"),
        (["ENV A=1"], "ENV before the first FROM"),
    ],
)
def test_what_is_not_understood_is_refused_and_not_skipped(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(DockerfileError, match=words):
        read_stages(text(tmp_path, *lines), {})


def test_an_unknown_target_is_refused_with_those_there_are() -> None:
    with pytest.raises(DockerfileError, match="no stage is called prod; there are build, build-gpu"):
        closure(STAGES, "prod")
