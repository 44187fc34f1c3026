"""Which SIDs one request may return, as bits over slots.

A slot is the stable integer of a SID within a catalogue's lineage: the distinct trained SIDs in ascending order have
slots 0..N-1, a SID that comes later takes the next integer, and a removed SID keeps its own for ever. So a bitmap made
where the items are known means the same where only SIDs are. It knows neither the rule behind the bits nor the trie.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LegalSlots:
    """``bits`` hold one bit per slot, ``numpy.packbits(mask, bitorder="little")``; a missing tail is not legal.

    ``key`` digests catalogue version and rule, so that what is derived from the bits may be cached under it; ``count``
    says how many SIDs are legal.
    """

    key: str
    bits: bytes
    count: int

    @classmethod
    def of(cls, key: str, mask_S: NDArray[np.bool_]) -> "LegalSlots":
        """Pack a mask over slots, bool [S]."""
        return cls(key, np.packbits(mask_S, bitorder="little").tobytes(), int(mask_S.sum()))

    def mask(self, slots: int) -> NDArray[np.bool_]:
        """The bits as bool [slots]."""
        mask_S = np.zeros(slots, bool)
        given = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=slots, bitorder="little")
        mask_S[: len(given)] = given
        return mask_S
