"""Checkpoints that must not be served: fourteen ways to be broken (drill 10).

Each is a copy of a good one. Where the manifest's checksums would find the fault first, the copy is sealed again, so
that the later check has to.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from service.model.checkpoint import seal
from tests.faults.figure import Figure, count, seconds
from tests.faults.scene import Scene
from tests.faults.stage import ROOT
from tests.redis_server import RedisServer, free_port
from tests.tiny_checkpoint import Shape, build

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daa\nsize 9\n"
)
REFUSED = 2


async def refused(scene: Scene, length: float) -> list[Figure]:
    """Drill 10: exit code 2 within seconds, one line that names what is wrong, a port that was never open."""
    folder = scene.folder()
    good = build(folder / "good", Shape()).folder
    other = build(folder / "other", Shape(items=40, seed=1)).folder
    (folder / "redis").mkdir()
    redis = RedisServer(folder / "redis").start()
    try:
        outcomes = [_serve(_damaged(folder, name, good, other), redis.url) for name in FAULTS]
    finally:
        redis.kill()
    slowest = max(took for _, _, _, took in outcomes)
    return [
        count("broken checkpoints", len(outcomes), 14),
        count("refused with exit code 2", sum(code == REFUSED for code, _, _, _ in outcomes), len(outcomes)),
        count("told in one line", sum(_one_line(words) for _, words, _, _ in outcomes), len(outcomes)),
        count("ports that were open", sum(opened for _, _, opened, _ in outcomes)),
        seconds("slowest refusal", slowest, 5.0),
    ]


def _damaged(folder: Path, name: str, good: Path, other: Path) -> Path:
    copy = Path(shutil.copytree(good, folder / name.replace(" ", "-")))
    FAULTS[name](copy, other)
    return copy


def _serve(checkpoint: Path, redis_url: str) -> tuple[int, str, bool, float]:
    """Exit code, standard error, whether the port was ever open, and seconds it took."""
    port, start = free_port(), time.monotonic()
    command = [sys.executable, "-m", "service", "serve", "--checkpoint", str(checkpoint), "--redis-url", redis_url]
    process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    opened = False
    while process.poll() is None and time.monotonic() < start + 120:
        with socket.socket() as probe:
            opened |= probe.connect_ex(("127.0.0.1", port)) == 0
        time.sleep(0.02)
    took = time.monotonic() - start
    process.kill()
    return process.wait(), process.communicate()[1], opened, took


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
    path = folder / "lm" / "tokenizer.json"
    raw = json.loads(path.read_bytes())
    raw["added_tokens"] = raw["added_tokens"][:-1]
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


FAULTS: dict[str, Callable[[Path, Path], object]] = {
    "truncated": _truncate,
    "flipped bit": _flip,
    "missing file": lambda folder, other: (folder / "quantizer.safetensors").unlink(),
    "extra pickle": lambda folder, other: (folder / "weights.pkl").write_bytes(b"\x80\x04."),
    "LFS pointer": lambda folder, other: (folder / "lm" / "model.safetensors").write_bytes(LFS_POINTER),
    "wrong sha256": _wrong_sha,
    "newer manifest": _newer,
    "wrong codebook": _wrong_codebook,
    "wrong vocabulary": _wrong_vocabulary,
    "NaN": _nan,
    "wrong tokenizer": _wrong_tokenizer,
    "other model's catalogue": _other_catalogue,
    "unreadable": _unreadable,
    "empty": _empty,
}
