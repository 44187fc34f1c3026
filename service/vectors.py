"""Item embeddings packed for the log: one byte a component and one length, so that nobody embeds a posted text twice.

A unit embedding of 384 components comes back with a cosine above 0.9999 to itself. Replicas and restarts all read the
packed form, the posting replica too, so they compute the same from it.
"""

import numpy as np
from numpy.typing import NDArray

LENGTH_BYTES = 4


def pack(embedding_E: NDArray[np.float32]) -> bytes:
    """float32 [E] -> float32 length and int8 [E], the direction."""
    scale = max(float(np.abs(embedding_E).max(initial=0.0)), 1e-12) / 127
    direction: bytes = np.rint(embedding_E / np.float32(scale)).astype(np.int8).tobytes()
    return bytes(np.float32(np.linalg.norm(embedding_E)).tobytes()) + direction


def unpack(packed: bytes) -> NDArray[np.float32]:
    """The inverse of `pack` up to rounding, of the length it had: float32 [E]."""
    length = np.frombuffer(packed[:LENGTH_BYTES], np.float32)
    direction_E = np.frombuffer(packed[LENGTH_BYTES:], np.int8).astype(np.float32)
    return direction_E * (length / max(float(np.linalg.norm(direction_E)), 1e-12))
