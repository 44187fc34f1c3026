"""The embedding rows of a newly opened code, in closed form: a mixture of the rows of its level's trained codes.

A code's weight is the softmax of the cosines between the new vector and the trained codes' vectors, at the temperature
at which new items borrow probability (`smoothing`): the new token begins where the model has its nearest relatives,
and no gradient is needed. Every replica computes the same rows from the same vector. A code that is closed again gets
the rows that the checkpoint has.

Shapes: L levels, K codes with vectors, A codes with tokens (A >= K), T trained codes of a level, D model width,
E codebook width.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from service.model.quantizer import OpenedCode


class CodeRows:
    """Knows the trained rows.

    Args:
        codebooks_LKE: the codebooks, float32.
        codes_NL: the trained items' SIDs; rows of codes that none of them has learned nothing.
        given: input rows float32 [L * A, D].
        said: output rows float32 [L * A, D].
        temperature: of the softmax, > 0.
    """

    def __init__(
        self, codebooks_LKE: Tensor, codes_NL: NDArray[np.integer], given: Tensor, said: Tensor, temperature: float
    ) -> None:
        levels = codebooks_LKE.shape[0]
        self._codebooks_LKE, self._temperature = codebooks_LKE, temperature
        self._given_LAD, self._said_LAD = given.view(levels, -1, given.shape[1]), said.view(levels, -1, said.shape[1])
        self._trained = [torch.from_numpy(np.unique(codes_NL[:, level]).astype(np.int64)) for level in range(levels)]

    def opened(self, code: OpenedCode) -> tuple[list[float], list[float]]:
        """Input and output row of an opened code, D floats each."""
        trained_T = self._trained[code.level]
        weight_T = self._weights(code, trained_T)
        rows = ((weight_T[:, None] * rows_LAD[code.level, trained_T]).sum(0) for rows_LAD in self._both)
        given_D, said_D = (row.tolist() for row in rows)
        return given_D, said_D

    def trained(self, level: int, code: int) -> tuple[list[float], list[float]]:
        """Input and output row as the checkpoint has them."""
        given_D, said_D = (rows_LAD[level, code].tolist() for rows_LAD in self._both)
        return given_D, said_D

    @property
    def _both(self) -> tuple[Tensor, Tensor]:
        return self._given_LAD, self._said_LAD

    def _weights(self, code: OpenedCode, trained_T: Tensor) -> Tensor:
        book_TE = F.normalize(self._codebooks_LKE[code.level, trained_T], dim=1)
        centroid_E = F.normalize(torch.tensor(code.centroid_D), dim=0)
        return torch.softmax(book_TE @ centroid_E / self._temperature, 0)
