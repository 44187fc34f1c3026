"""Item text -> item embedding, by a local sentence-transformers folder (offline, no remote code).

The same class embeds the catalogue in training and new items in the service. It knows nothing of SIDs.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray


class TextEncoder:
    """Loads a folder once; embeddings are float32 [N, E] of unit length."""

    def __init__(self, folder: Path, max_tokens: int = 128) -> None:
        # imported late: it takes seconds, and most users of this package never embed
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
        self._model.max_seq_length = max_tokens

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> NDArray[np.float32]:
        """Embed texts in order, unit length."""
        with torch.inference_mode():
            embedding = self._model.encode(
                list(texts), batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
            )
        return np.asarray(embedding, dtype=np.float32)
