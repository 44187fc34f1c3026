"""Checkpoints that must not be served: fourteen ways to be broken (drill 10).

Each is a copy of a good one. Where the manifest's checksums would find the fault first, the copy is sealed again, so
that the later check has to.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from service.model.checkpoint import seal
from tests.faults.figure import Figure, count, seconds
from tests.faults.scene import Scene
from tests.faults.stage import DURABLE, ROOT, Replica
from tests.redis_server import RedisServer, free_port
from tests.tiny_checkpoint import Shape, build
from tests.tiny_text_encoder import with_text_encoder

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daa\nsize 9\n"
)
REFUSED = 2
PATIENCE_SECONDS = 60


async def refused(scene: Scene, length: float) -> list[Figure]:
    """Drill 10: exit code 2 within seconds, one line that names what is wrong, a port that was never open."""
    folder = scene.folder()
    good = with_text_encoder(build(folder / "good", Shape()), folder / "good-encoder").folder
    other = with_text_encoder(build(folder / "other", Shape(items=40, seed=1)), folder / "other-encoder").folder
    (folder / "redis").mkdir()
    redis = RedisServer(folder / "redis", *DURABLE).start()
    try:
        healthy = await _starts(folder / "control", Path(shutil.copytree(good, folder / "whole")), redis.url)
        refusals = {name: _serve(_damaged(folder, name, good, other), redis.url) for name in FAULTS}
    finally:
        redis.kill()
    for name, refusal in refusals.items():
        print(f"  {name}: {refusal.seconds:.1f} s, {refusal.cpu:.1f} CPU s: {refusal.words.strip()}")
    told = [FAULTS[name].told in refusal.words for name, refusal in refusals.items()]
    slowest = max(refusals.values(), key=lambda refusal: refusal.seconds)
    return [
        count("whole copies that became ready", float(healthy), 1),
        count("broken checkpoints", len(refusals), 14),
        count("refused with exit code 2", sum(each.code == REFUSED for each in refusals.values()), len(refusals)),
        count("told in one line", sum(_one_line(each.words) for each in refusals.values()), len(refusals)),
        count("lines that name the fault", sum(told), len(refusals)),
        count("ports that were open", sum(each.opened for each in refusals.values())),
        seconds("slowest refusal", slowest.seconds, 5.0),
        seconds("CPU time of the dearest refusal", max(each.cpu for each in refusals.values()), 5.0),
    ]


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a start ended: exit code, standard error, whether the port was ever open, seconds and CPU seconds it took."""

    code: int
    words: str
    opened: bool
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Fault:
    """What breaks a copy (given another model's checkpoint, too), and words that only this fault's line holds."""

    damage: Callable[[Path, Path], object]
    told: str


def _damaged(folder: Path, name: str, good: Path, other: Path) -> Path:
    copy = Path(shutil.copytree(good, folder / name.replace(" ", "-")))
    FAULTS[name].damage(copy, other)
    return copy


async def _starts(folder: Path, checkpoint: Path, redis_url: str) -> bool:
    """Whether the copy that nothing happened to is served; without that, a refusal would say nothing of its fault."""
    replica = Replica(folder, checkpoint, redis_url)
    try:
        await replica.start()
        return await replica.stop() == 0
    finally:
        replica.kill()


def _serve(checkpoint: Path, redis_url: str) -> Refusal:
    port, start, words = free_port(), time.monotonic(), checkpoint.with_suffix(".stderr")
    command = [sys.executable, "-m", "service", "serve", "--checkpoint", str(checkpoint), "--redis-url", redis_url]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with words.open("w") as stderr:
        process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, env=environment, stderr=stderr)
    opened, pid = False, 0
    while not pid:
        if time.monotonic() > start + PATIENCE_SECONDS:
            process.kill()
        with socket.socket() as probe:
            opened |= probe.connect_ex(("127.0.0.1", port)) == 0
        time.sleep(0.02)
        pid, status, used = os.wait4(process.pid, os.WNOHANG)  # Popen does not tell the process's CPU time
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime
    return Refusal(process.returncode, words.read_text(), opened, time.monotonic() - start, cpu)


def _one_line(words: str) -> bool:
    return words.count("\n") == 1 and words.startswith("groundrec: ")


def _seal_again(folder: Path) -> None:
    raw = json.loads((folder / "manifest.json").read_bytes())
    seal(folder, {key: value for key, value in raw.items() if key not in {"files", "model_version"}})


def _flip(folder: Path, other: Path) -> None:
    path = folder / "lm" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _truncate(folder: Path, other: Path) -> None:
    path = folder / "catalog.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def _wrong_sha(folder: Path, other: Path) -> None:
    path = folder / "manifest.json"
    raw = json.loads(path.read_bytes())
    raw["files"]["quantizer.safetensors"]["sha256"] = "0" * 64
    path.write_text(json.dumps(raw))


def _newer(folder: Path, other: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"schema_version": 99}))


def _wrong_codebook(folder: Path, other: Path) -> None:
    save_file({"codebooks": torch.zeros(3, 4, 8)}, folder / "quantizer.safetensors")
    _seal_again(folder)


def _wrong_vocabulary(folder: Path, other: Path) -> None:
    path = folder / "lm" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"vocab_size": 999}))
    _seal_again(folder)


def _nan(folder: Path, other: Path) -> None:
    stored = load_file(folder / "catalog.safetensors")
    stored["embeddings"].view(-1)[0] = float("nan")
    save_file(stored, folder / "catalog.safetensors")
    _seal_again(folder)


def _wrong_tokenizer(folder: Path, other: Path) -> None:
    """One that lacks the last SID token, as another model's would."""
    path = folder / "lm" / "tokenizer.json"
    raw = json.loads(path.read_bytes())
    vocabulary = raw["model"]["vocab"]
    del vocabulary[max(vocabulary, key=vocabulary.get)]
    path.write_text(json.dumps(raw))
    _seal_again(folder)


def _other_catalogue(folder: Path, other: Path) -> None:
    shutil.copy(other / "catalog.jsonl", folder / "catalog.jsonl")
    _seal_again(folder)


def _unreadable(folder: Path, other: Path) -> None:
    """A folder where the file should be: what root may not read either."""
    (folder / "quantizer.safetensors").unlink()
    (folder / "quantizer.safetensors").mkdir()


def _empty(folder: Path, other: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


FAULTS = {
    "truncated": Fault(_truncate, "catalog.safetensors: "),
    "flipped bit": Fault(_flip, "model.safetensors: its sha256 is not the manifest's"),
    "missing file": Fault(
        lambda folder, other: (folder / "quantizer.safetensors").unlink(),
        "quantizer.safetensors: listed in the manifest but missing",
    ),
    "extra pickle": Fault(
        lambda folder, other: (folder / "weights.pkl").write_bytes(b"\x80\x04."),
        "weights.pkl: not listed in the manifest",
    ),
    "LFS pointer": Fault(
        lambda folder, other: (folder / "lm" / "model.safetensors").write_bytes(LFS_POINTER),
        "model.safetensors: 110 bytes, the manifest says",
    ),
    "wrong sha256": Fault(_wrong_sha, "quantizer.safetensors: its sha256 is not the manifest's"),
    "newer manifest": Fault(_newer, "schema version 99"),
    "wrong codebook": Fault(_wrong_codebook, "quantizer.safetensors: the codebooks do not have the manifest's levels"),
    "wrong vocabulary": Fault(_wrong_vocabulary, "config.json: vocab_size is 999"),
    "NaN": Fault(_nan, "catalog.safetensors: tensor 'embeddings' holds NaN"),
    "wrong tokenizer": Fault(_wrong_tokenizer, "tokenizer.json: lacks 1 of the SID tokens"),
    "other model's catalogue": Fault(_other_catalogue, "catalog.jsonl: 40 items, the manifest says"),
    "unreadable": Fault(_unreadable, "quantizer.safetensors: listed in the manifest but missing"),
    "empty": Fault(_empty, "manifest.json: not found"),
}
