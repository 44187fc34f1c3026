"""Builds an image's root folder from the Dockerfile without Docker, and proves that the service starts from it.

Stages become folders; RUN happens in a chroot, COPY copies. Only the base image is a stand-in: Debian's own Python of
the same minor version, from the Debian mirror, because image registries may be out of reach. The proof then runs the
image's own command as its numeric user, without capabilities, its root mounted read-only, and asks it over HTTP.

Needs root and mmdebstrap. It knows nothing about the service but its routes.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from dockerfile_steps import Copy, DockerfileError, Run, Stage, closure, read_stages
from listening_sockets import foreign_listeners, listeners_of

ROOT = Path(__file__).resolve().parents[1]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "tcc", "ld", "as", "make", "cargo", "rustc", "nvcc")
READY_SECONDS, STOP_SECONDS = 240, 60
SHARED_MEMORY = "256m"  # vLLM wants 160 MiB, a container has 64 unless it is given more
DEVICES = ("null", "zero", "full", "random", "urandom")
# What a RUN needs of this machine to reach the package indexes, as build arguments and proxies do it for a builder.
HOST_PLACES = (
    "/etc/resolv.conf",
    "/etc/pip.conf",
    "/etc/xdg/pip",
    "/etc/ssl/certs",
    "/opt/wheels",
    "/opt/pypi",
    "/opt/pypi-more",
)
HOST_VARIABLES = (
    "PIP_",
    "SSL_CERT",
    "REQUESTS_CA",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)


class ReproductionError(Exception):
    """A step failed, or the proof did not hold; the message says which."""


def say(text: str) -> None:
    """A line for people; stdout is for the figures."""
    print(text, file=sys.stderr, flush=True)


def stand_in_base(folder: Path) -> None:
    """A minimal Debian with Python, where the base image has it."""
    sources = sorted(Path("/etc/apt/sources.list.d").glob("debian.sources")) or [Path("/etc/apt/sources.list")]
    packages = "python3,python3-venv,ca-certificates"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", "--skip=check/empty"]
    _check([*command, "bookworm", str(folder), *map(str, sources)], "mmdebstrap")
    for name in ("python", "python3"):
        (folder / "usr/local/bin" / name).symlink_to("/usr/bin/python3")


def build(stages: Sequence[Stage], base: Path, work: Path) -> dict[str, Path]:
    """The root folder of each stage."""
    roots: dict[str, Path] = {}
    for stage in stages:
        roots[stage.name] = root = work / stage.name
        _check(["cp", "-a", "--reflink=auto", str(roots.get(stage.parent, base)), str(root)], f"FROM {stage.parent}")
        say(f"  stage {stage.name}")
        for step in stage.steps:
            _build_run(root, step) if isinstance(step, Run) else _build_copy(root, step, roots)
        (root / stage.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return roots


def _build_run(root: Path, step: Run) -> None:
    say(f"    RUN {step.command[:100]}")
    passed = {name: value for name, value in os.environ.items() if name.startswith(HOST_VARIABLES)}
    passed |= {name: value for name, value in step.environment.items() if value}
    (root / step.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    mounts = "".join(_bind(Path(place), root) for place in HOST_PLACES)
    script = f"mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev; {mounts}"
    inside = ["sh", "-c", f"cd {step.folder} && {step.command}"]
    _check(_chroot(root, script, {"PATH": PATH, "HOME": "/root", **passed}, step.user, inside), f"RUN {step.command}")


def _build_copy(root: Path, step: Copy, roots: Mapping[str, Path]) -> None:
    origin = roots[step.stage] if step.stage else ROOT
    target = root / str(Path(step.folder) / step.target).lstrip("/")
    for source in step.sources:
        found = origin / source.lstrip("/")
        into = target / found.name if step.target.endswith("/") and found.is_file() else target
        into.parent.mkdir(parents=True, exist_ok=True)
        if found.is_dir():
            skip = shutil.ignore_patterns("__pycache__") if step.stage is None else None
            shutil.copytree(found, into, symlinks=True, dirs_exist_ok=True, ignore=skip)
        else:
            shutil.copy2(found, into)


def _bind(place: Path, root: Path) -> str:
    """Shell text that shows one place of this machine, read-only, to a RUN."""
    if not place.exists():
        return ""
    inside = root / str(place).lstrip("/")
    made = f"mkdir -p {inside}" if place.is_dir() else f"mkdir -p {inside.parent}; touch {inside}"
    return f"{made}; mount --bind -o ro {place.resolve()} {inside}; "


def _chroot(root: Path, script: str, environment: Mapping[str, str], user: str, command: Sequence[str]) -> list[str]:
    """``command`` in ``root``, after ``script`` has mounted what it needs, in namespaces that end with it."""
    uid, gid = user.split(":")
    drop = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    if uid != "0":
        drop += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    entry = ["chroot", str(root), *drop, "env", "-i", *(f"{key}={text}" for key, text in environment.items())]
    outer = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child=SIGTERM"]
    return [*outer, "sh", "-ec", f'{script} exec "$@"', "sh", *entry, *command]


def container(
    root: Path, stage: Stage, checkpoint: Path, extra: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """What a container runtime does: read-only root, no capabilities or new privileges, fresh /tmp and /dev/shm."""
    place = root / "data/checkpoint"
    place.mkdir(parents=True, exist_ok=True)
    devices = "".join(f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}; " for name in DEVICES)
    script = (
        f"mount --bind {root} {root}; mount -t proc proc {root}/proc; mount -t sysfs -o ro sysfs {root}/sys; "
        f"mount -t tmpfs tmpfs {root}/dev; {devices} mkdir {root}/dev/shm; "
        f"mount -t tmpfs -o size={SHARED_MEMORY} tmpfs {root}/dev/shm; mount -t tmpfs tmpfs {root}/tmp; "  # nosec B108
        f"mount --bind -o ro {checkpoint} {place}; mount -o remount,bind,ro {root};"
    )
    start = ["sh", "-c", f'cd {stage.folder} && exec "$@"', "sh", *command]
    return _chroot(root, script, {"PATH": PATH, **stage.environment, **extra}, stage.user, start)


def check_image(root: Path, stage: Stage, checkpoint: Path) -> None:
    """What can be seen without starting the service: no compiler, nothing writable, a numeric user."""
    if not stage.user.replace(":", "").isdigit() or stage.user.startswith("0"):
        raise ReproductionError(f"USER {stage.user} is not a numeric user other than root")
    look = "for name in " + " ".join(COMPILERS) + "; do command -v $name && exit 7; done; "
    look += "for place in / /venv /data /usr /etc; do (: > $place/.x) 2>/dev/null && exit 8; done; : > /tmp/x; id -u"
    answer = subprocess.run(
        container(root, stage, checkpoint, {}, ["sh", "-c", look]), capture_output=True, text=True, check=False
    )
    if answer.returncode or answer.stdout.strip() != stage.user.split(":")[0]:
        raise ReproductionError(f"the image holds a compiler or a writable place: {answer.stdout} {answer.stderr}")


def readable_copy(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint as another user may read it: older ones were written for their owner alone."""
    if not (checkpoint / "manifest.json").is_file():
        raise ReproductionError(
            f"--checkpoint {checkpoint}: no checkpoint lies there; see deploy/quickstart.sh --no-serve"
        )
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoint, folder)
    _check(["chmod", "-R", "a+rX", str(folder)], "chmod")
    return folder


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to ``log``; killed on the way out if it still runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def prove(root: Path, stage: Stage, checkpoint: Path, redis_url: str, port: int, log: Path) -> dict[str, object]:
    """Start the image's command, ask it, look at its processes, stop it."""
    extra = {"GROUNDREC_REDIS_URL": redis_url, "GROUNDREC_PORT": str(port), "GROUNDREC_HOST": "127.0.0.1"}
    extra |= {"OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    with running(container(root, stage, checkpoint, extra, stage.command), log) as process:
        ready_s = _wait_ready(process, port, log, started)
        first = _child(process.pid)
        answer = _ask(port, "/v1/recommend", {"history": _some_items(checkpoint), "num_results": 5})
        sources = {item["source"] for item in answer["items"]}
        if answer["degraded"] or "model" not in sources:
            raise ReproductionError(f"the answer is not the model's: {answer}")
        facts = _process_facts(first, stage)
        strangers = foreign_listeners(first, port)
        if strangers:
            raise ReproductionError(f"listening beyond loopback: {strangers}")
        listeners = len(listeners_of(first))
        os.kill(first, signal.SIGTERM)
        code = process.wait(STOP_SECONDS)
        if code:
            raise ReproductionError(f"SIGTERM ended it with code {code} instead of 0; log: {log}")
    return {"ready_s": round(ready_s, 1), "items": len(answer["items"]), "listeners": listeners, **facts}


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path, started: float) -> float:
    while time.monotonic() - started < READY_SECONDS:
        if process.poll() is not None:
            tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])
            raise ReproductionError(f"the service ended with code {process.returncode}:\n{tail}")
        try:
            _ask(port, "/health/ready", None)
            return time.monotonic() - started
        except (URLError, OSError):
            time.sleep(0.5)
    raise ReproductionError(f"not ready within {READY_SECONDS} s; log: {log}")


def _ask(port: int, path: str, body: object) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
        document: dict[str, Any] = json.loads(answer.read() or b"{}")
        return document


def _some_items(checkpoint: Path) -> list[str]:
    with (checkpoint / "catalog.jsonl").open(encoding="utf-8") as lines:
        return [str(json.loads(line)["item_id"]) for line, _ in zip(lines, range(5), strict=False)]


def _child(pid: int) -> int:
    """The service itself, below `unshare`."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _process_facts(pid: int, stage: Stage) -> dict[str, object]:
    fields = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    uid, capabilities = fields["Uid"].split()[1], int(fields["CapEff"], 16) | int(fields["CapBnd"], 16)
    if uid != stage.user.split(":")[0] or capabilities or fields["NoNewPrivs"] != "1":
        raise ReproductionError(
            f"runs as {uid} with capabilities {capabilities:x}, no_new_privs {fields['NoNewPrivs']}"
        )
    return {"uid": int(uid), "capabilities": capabilities}


def _check(command: Sequence[str], step: str) -> None:
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if answer.returncode:
        tail = "\n".join(answer.stdout.splitlines()[-15:])
        raise ReproductionError(f"{step}\nfailed with code {answer.returncode}:\n{tail}")


def main() -> int:
    """See `reproduce-image.sh --help`."""
    parser = argparse.ArgumentParser(prog="deploy/reproduce-image.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu", help="stage of the Dockerfile (default cpu)")
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "runs/quickstart/checkpoint")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the stages; a finished build there is used again"
    )
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        figures = reproduce(options)
    except (ReproductionError, DockerfileError) as error:
        say(f"reproduce-image.sh: {error}")
        return 1
    line = json.dumps(
        {"drill": "reproduce_image", "target": options.target, "wall_s": round(time.monotonic() - began), **figures}
    )
    print(line)
    if options.json:
        options.json.write_text(line + "\n", "utf-8")
    return 0


def reproduce(options: argparse.Namespace) -> dict[str, object]:
    """Base, stages, proof; what lies in the work folder already is not made again.

    Raises:
        ReproductionError: a step failed or the proof did not hold.
        DockerfileError: the Dockerfile is not understood.
    """
    arguments = dict(pair.split("=", 1) for pair in options.build_arg)
    stages = closure(read_stages(ROOT / "Dockerfile", arguments), options.target)
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "base-image.done").exists():
        say("The base image's stand-in (Debian with Python)")
        stand_in_base(work / "base-image")
        (work / "base-image.done").touch()
    target = stages[-1]
    if not (work / f"{target.name}.done").exists():
        build(stages, work / "base-image", work)
        (work / f"{target.name}.done").touch()
    root = work / target.name
    checkpoint = readable_copy(options.checkpoint, work / "checkpoint")
    check_image(root, target, checkpoint)
    say("Starting the service from it: read-only root, no capabilities, numeric user")
    proof = prove(root, target, checkpoint, options.redis_url, options.port, work / "service.log")
    size = subprocess.run(["du", "-sm", str(root)], capture_output=True, text=True, check=True).stdout.split()[0]
    return {"image_mib": int(size), **proof}


if __name__ == "__main__":
    sys.exit(main())
