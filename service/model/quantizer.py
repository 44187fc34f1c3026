"""The frozen quantiser: item embedding -> SID, by residual nearest neighbours in L codebooks.

Serves residual k-means (codebooks in embedding space) and RQ-VAE (codebooks behind an MLP encoder). Fitting lives in
training; here only the deterministic assignment that a new item needs. It knows nothing of the catalogue.

A code that is opened later lies beside the codebooks, not in them: its number may leave a gap behind K, and the codes
that are still closed must never be the nearest.

Shapes: N items, E embedding width, D codebook width, L levels, K codes, C codes of a level with the opened ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class OpenedCode:
    """A code that the codebooks do not have: level (0-based), number (>= K) and its vector, D floats."""

    level: int
    code: int
    centroid_D: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ResidualQuantizer:
    """``codebooks_LKD`` float32; ``encoder`` is a list of (weight, bias) with ReLU between, empty for k-means."""

    codebooks_LKD: Tensor
    encoder: tuple[tuple[Tensor, Tensor], ...] = ()
    opened: tuple[OpenedCode, ...] = ()

    @property
    def levels(self) -> int:
        """L."""
        return int(self.codebooks_LKD.shape[0])

    @property
    def codes(self) -> int:
        """K."""
        return int(self.codebooks_LKD.shape[1])

    @property
    def width(self) -> int:
        """D: the width of codebook space."""
        return int(self.codebooks_LKD.shape[2])

    @property
    def embedding_width(self) -> int:
        """E: the width of the embeddings it takes."""
        return int(self.encoder[0][0].shape[1] if self.encoder else self.codebooks_LKD.shape[2])

    def project(self, embedding_NE: Tensor) -> Tensor:
        """Embeddings [N, E] -> codebook space [N, D]."""
        hidden = embedding_NE.float()
        for layer, (weight, bias) in enumerate(self.encoder):
            hidden = F.linear(F.relu(hidden) if layer else hidden, weight, bias)
        return hidden

    def encode(self, embedding_NE: Tensor) -> Tensor:
        """Embeddings [N, E] -> codes int64 [N, L], each level the nearest code to what the levels above left over."""
        return self.encode_with_distances(embedding_NE)[0]

    def encode_with_distances(self, embedding_NE: Tensor) -> tuple[Tensor, Tensor]:
        """Codes int64 [N, L] and the squared residual left after each level, float32 [N, L]."""
        residual_ND = self.project(embedding_NE)
        codes, distances = [], []
        for level in range(self.levels):
            code_C, book_CD = self._book(level)
            nearest_N = _squared_distances(residual_ND, book_CD).argmin(1)
            residual_ND = residual_ND - book_CD[nearest_N]
            codes.append(code_C[nearest_N])
            distances.append((residual_ND**2).sum(1))
        return torch.stack(codes, 1), torch.stack(distances, 1)

    def last_level_distances(self, embedding_NE: Tensor, codes_NL: Tensor) -> Tensor:
        """Squared distances of each item's residual before the last level to every last-level code, [N, K]."""
        return _squared_distances(self.residual(embedding_NE, codes_NL[:, :-1]), self.codebooks_LKD[-1])

    def residual(self, embedding_NE: Tensor, codes_Nn: Tensor) -> Tensor:
        """What the first n codes of each item leave over, float32 [N, D]."""
        residual_ND = self.project(embedding_NE)
        for level in range(codes_Nn.shape[1]):
            code_C, book_CD = self._book(level)
            residual_ND = residual_ND - book_CD[torch.searchsorted(code_C, codes_Nn[:, level].contiguous())]
        return residual_ND

    def with_opened(self, opened: Sequence[OpenedCode]) -> "ResidualQuantizer":
        """The same codebooks with these opened codes and no others.

        Raises:
            ValueError: one lies at the last level (whose codes tell items of a prefix apart, and run out for none),
                has a vector of another width, or is in the codebook.
        """
        for each in opened:
            if not 0 <= each.level < self.levels - 1:
                raise ValueError(f"a code can be opened at levels 0..{self.levels - 2}, not at {each.level}")
            if len(each.centroid_D) != self.width or each.code < self.codes:
                raise ValueError(f"an opened code is at least {self.codes} and has {self.width} numbers")
        return replace(self, opened=tuple(sorted(opened, key=lambda each: (each.level, each.code))))

    def _book(self, level: int) -> tuple[Tensor, Tensor]:
        """The codes of a level, int64 [C] ascending, and their vectors, [C, D]."""
        opened = [each for each in self.opened if each.level == level]
        code_K, book_KD = torch.arange(self.codes), self.codebooks_LKD[level]
        if not opened:
            return code_K, book_KD
        vectors = torch.tensor([each.centroid_D for each in opened])
        return torch.cat([code_K, torch.tensor([each.code for each in opened])]), torch.cat([book_KD, vectors])

    def last_level_preferences(self, embedding_E: Tensor, prefix: Sequence[int]) -> list[int]:
        """All last-level codes for one item under a fixed prefix, nearest first."""
        codes_1L = torch.tensor([[*prefix, 0]])
        distances_K = self.last_level_distances(embedding_E[None], codes_1L)[0]
        return [int(code) for code in torch.sort(distances_K, stable=True).indices]

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint stores: the codebooks as they were fitted."""
        stored = {"codebooks": self.codebooks_LKD.contiguous()}
        for layer, (weight, bias) in enumerate(self.encoder):
            stored |= {f"encoder.{layer}.weight": weight.contiguous(), f"encoder.{layer}.bias": bias.contiguous()}
        return stored

    @classmethod
    def from_tensors(cls, stored: dict[str, Tensor]) -> "ResidualQuantizer":
        """The inverse of `tensors`."""
        layers = sum(name.endswith(".weight") for name in stored)
        encoder = tuple((stored[f"encoder.{n}.weight"], stored[f"encoder.{n}.bias"]) for n in range(layers))
        return cls(stored["codebooks"], encoder)


def _squared_distances(x_ND: Tensor, y_KD: Tensor) -> Tensor:
    return (x_ND**2).sum(1, keepdim=True) - 2 * x_ND @ y_KD.T + (y_KD**2).sum(1)[None]
