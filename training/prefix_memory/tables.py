"""Tables of a prefix memory alone in a file: without W_out, so that any backbone may attach them.

A row means what the SIDs of its catalogue mean, so the file carries a fingerprint of all SIDs and opens for them alone.
Safetensors; sizes and kind are JSON in its header.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from service.model.checkpoint import open_checkpoint
from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from training.errors import TrainingError
from training.prefix_memory.registry import build, kind_of

MODEL_PARTS = ("w_out.", "gate.", "output_bias.")


def save_tables(memory: PrefixMemory, codes_NL: NDArray[np.int64], path: Path) -> None:
    """Write the tables and touch counts, replacing the file as a whole.

    Raises:
        TrainingError: the file cannot be written.
    """
    tensors = {n: t.detach().contiguous() for n, t in memory.state_dict().items() if not n.startswith(MODEL_PARTS)}
    header = {
        "kind": kind_of(memory),
        "config": json.dumps(asdict(memory.config)),
        "sids": sids_fingerprint(codes_NL),
    }
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata=header)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise TrainingError(f"{path}: the memory could not be saved: {error}; free some space") from error


def load_tables(path: Path, codes_NL: NDArray[np.int64]) -> PrefixMemory:
    """The memory of a file, still without a model (`PrefixMemory.attach`).

    Raises:
        TrainingError: the file is no memory, or was made for other SIDs.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        stored = json.loads(header["config"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise TrainingError(f"{path}: no prefix memory ({error}); `groundrec memory export` makes one") from error
    if header.get("sids") != sids_fingerprint(codes_NL):
        raise TrainingError(
            f"{path}: these tables belong to other SIDs, so their rows mean other items; use the same data and sids "
            "as the run they are from, or leave prefix_memory.tables out"
        )
    sizes: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()}
    config = PrefixMemoryConfig(**sizes)
    memory = build(header["kind"], config, codes_NL)
    missing, unexpected = memory.load_state_dict(tensors, strict=False)
    if unexpected or any(not name.startswith(MODEL_PARTS) for name in missing):
        raise TrainingError(f"{path}: damaged: {missing} missing, {unexpected} unexpected")
    return memory


def export_tables(run: Path, out: Path, *, pretrained: bool = False) -> PrefixMemory:
    """Write the memory of a run's checkpoint to a file, or (``pretrained``) what it was before fine-tuning.

    Raises:
        TrainingError: the run has no memory, or the file cannot be written.
        CheckpointError: the run has no checkpoint.
    """
    checkpoint = open_checkpoint(run / "checkpoint")
    codes_NL = checkpoint.catalog_tensors().codes_NL.astype(np.int64)
    memory = load_tables(run / "stages" / "prefix_memory" / "memory.safetensors", codes_NL) if pretrained else None
    memory = memory or checkpoint.prefix_memory()
    if memory is None:
        raise TrainingError(f"{run}: its checkpoint has no prefix memory; train with prefix_memory.enabled = true")
    save_tables(memory, codes_NL, out)
    return memory


def sids_fingerprint(codes_NL: NDArray[np.int64]) -> str:
    """Sha256 of all items' SIDs in their order."""
    digest = hashlib.sha256(repr(codes_NL.shape).encode())
    digest.update(np.ascontiguousarray(codes_NL, dtype="<i8").tobytes())
    return digest.hexdigest()


def tables_fingerprint(path: Path | None) -> str | None:
    """Sha256 of the file, so that a stage that read it is made again when it changes.

    Raises:
        TrainingError: it cannot be read.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TrainingError(f"prefix_memory.tables {path}: cannot be read: {error}") from error
