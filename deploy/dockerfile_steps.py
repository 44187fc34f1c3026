"""A Dockerfile as stages of steps, with variables filled in: what an image builder would do, as data.

Parsing is dockerfile-parse's; this file gives the instructions our Dockerfile uses their meaning and refuses every
other one, so that a new instruction is either understood here or noticed. It runs nothing and touches no file but the
Dockerfile.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
ABOUT_RUNNING = {"EXPOSE", "STOPSIGNAL", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


class DockerfileError(Exception):
    """The Dockerfile holds something that is not understood here; the message names it."""


@dataclass(frozen=True, slots=True)
class Run:
    """A shell command, with the environment it sees."""

    command: str
    environment: Mapping[str, str]
    user: str
    folder: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Files from the build context (``stage`` None) or from another stage."""

    sources: tuple[str, ...]
    target: str
    stage: str | None
    folder: str


@dataclass(slots=True)
class Stage:
    """One FROM and what follows it; the fields after ``steps`` are those of the image as it stands at the end."""

    name: str
    parent: str
    steps: list[Run | Copy] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    about: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """What a container of this image starts: ENTRYPOINT, then CMD."""
        return [word for name in ("ENTRYPOINT", "CMD") for word in json.loads(self.about.get(name, "[]"))]


def read_stages(dockerfile: Path, arguments: Mapping[str, str]) -> dict[str, Stage]:
    """The stages by name, each begun with what it inherits; ``arguments`` are build arguments.

    Raises:
        DockerfileError: an instruction or flag that is not understood.
    """
    structure = DockerfileParser(path=str(dockerfile)).structure
    stages: dict[str, Stage] = {}
    given, stage = dict(arguments), None
    outer: dict[str, str] = {}
    for row in structure:
        instruction, value = row["instruction"], " ".join(row["value"].split())
        if instruction == "COMMENT":
            continue
        if instruction == "FROM":
            stage = _begin(fill(value, outer), stages)
            local: dict[str, str] = {}
        elif instruction == "ARG":
            (outer if stage is None else local).update(_argument(value, given, outer))
        elif stage is None:
            raise DockerfileError(f"{instruction} before the first FROM")
        else:
            _follow(stage, instruction, value, local)
    return stages


def closure(stages: Mapping[str, Stage], target: str) -> list[Stage]:
    """``target`` and every stage it needs, each after those it needs.

    Raises:
        DockerfileError: there is no such stage.
    """
    if target not in stages:
        raise DockerfileError(f"no stage is called {target}; there are {', '.join(stages)}")
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in stages or name in order:
            return
        copied = [step.stage for step in stages[name].steps if isinstance(step, Copy) and step.stage]
        for needed in (stages[name].parent, *copied):
            visit(needed)
        order.append(name)

    visit(target)
    return [stages[name] for name in order]


def fill(text: str, variables: Mapping[str, str]) -> str:
    """``text`` with $NAME and ${NAME} replaced; unknown ones become empty, as they do in a build."""
    return VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)


def _begin(value: str, stages: dict[str, Stage]) -> Stage:
    match = re.fullmatch(r"(\S+) AS (\S+)", value, re.IGNORECASE)
    if match is None:
        raise DockerfileError(f"FROM {value}: write FROM image AS name")
    parent = stages.get(match[1])
    stage = Stage(match[2], match[1])
    if parent is not None:
        stage.environment, stage.about = dict(parent.environment), dict(parent.about)
        stage.user, stage.folder = parent.user, parent.folder
    stages[stage.name] = stage
    return stage


def _argument(value: str, given: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, str]:
    name, equals, default = value.partition("=")
    fallback = shlex.split(default)[0] if equals and shlex.split(default) else outer.get(name, "")
    return {name: given.get(name, fallback)}


def _follow(stage: Stage, instruction: str, value: str, local: Mapping[str, str]) -> None:
    seen = {**local, **stage.environment}
    if instruction == "ENV":
        pairs = (word.partition("=") for word in shlex.split(value))
        stage.environment.update({name: fill(text, {"PATH": _PATH, **seen}) for name, _, text in pairs})
    elif instruction == "WORKDIR":
        stage.folder = str(Path(stage.folder) / fill(value, seen))
    elif instruction == "USER":
        stage.user = value
    elif instruction == "RUN":
        if value.startswith(("--", "[")):
            raise DockerfileError(f"RUN {value.split()[0]}: only the plain shell form is understood")
        stage.steps.append(Run(value, dict(seen), stage.user, stage.folder))
    elif instruction == "COPY":
        stage.steps.append(_copy(value, stage.folder))
    elif instruction in ABOUT_RUNNING:
        stage.about[instruction] = value
    else:
        raise DockerfileError(f"{instruction} is not understood")


def _copy(value: str, folder: str) -> Copy:
    flags, words = [], value.split()
    while words[0].startswith("--"):
        flags.append(words.pop(0))
    stage = None
    for flag in flags:
        name, _, stage = flag.partition("=")
        if name != "--from":
            raise DockerfileError(f"COPY {flag}: only --from is understood")
    return Copy(tuple(words[:-1]), words[-1], stage, folder)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
