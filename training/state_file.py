"""State of a long loop on disk: one safetensors file, replaced atomically, bound to its owner by a fingerprint.

A kill at any moment leaves the old state or the new one, never half of either.
"""

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.errors import ResumeError, TrainingError


def save_state(path: Path, tensors: dict[str, Tensor], fingerprint: str) -> None:
    """Write the state beside the old one and swap.

    Raises:
        TrainingError: the disk is full or not writable; the old state stays.
    """
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, temporary, metadata={"fingerprint": fingerprint})
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise TrainingError(f"{path}: the state could not be saved: {error}; free some space and run again") from error


def load_state(path: Path, fingerprint: str) -> dict[str, Tensor] | None:
    """The state, or None if there is none of this fingerprint.

    Raises:
        ResumeError: the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("fingerprint") != fingerprint:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ResumeError(f"{path}: cannot be read: {error}; delete it to start this stage again") from error
