"""What there is to know about a set of SIDs, and the gates that stop training on bad ones.

Codebooks in which every item got one SID (RQ-VAE-Recommender issue 47) and SIDs shared by many items (LC-Rec issue 23)
have gone unnoticed elsewhere; here both are printed and gated. It does not know how the codes were made.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.errors import GateError


@dataclass(frozen=True, slots=True)
class SidReport:
    """Per level: used codes, entropy in bits, mean squared residual; over all: distinct SIDs and collisions.

    ``used_before`` counts the nearest codes, before collisions were handled: moving codes fills a level that collapsed.
    ``collision_rate`` is the share of items that share their SID; ``moved_share`` the share whose last code was moved.
    """

    items: int
    codes: int
    used: tuple[int, ...]
    used_before: tuple[int, ...]
    entropy_bits: tuple[float, ...]
    residual: tuple[float, ...]
    distinct: int
    largest_bucket: int
    collision_rate: float
    collision_rate_before: float
    moved_share: float

    @property
    def perplexity(self) -> tuple[float, ...]:
        """Per level the number of equally frequent codes of the same entropy."""
        return tuple(2**bits for bits in self.entropy_bits)

    def gate(self, *, min_usage: float, max_collision_rate: float) -> None:
        """Stop on collapse or too many collisions.

        Raises:
            GateError: the nearest codes are fewer than ``min_usage`` of a level's codes (or of the items, if those are
                fewer), or more than ``max_collision_rate`` of the items share a SID.
        """
        for level, used in enumerate(self.used_before):
            wanted = min_usage * min(self.codes, self.items)
            if used < wanted:
                raise GateError(
                    f"level {level + 1} uses {used} of {self.codes} codes, gate sids.min_usage wants {wanted:.0f}: "
                    "the codebook collapsed; lower sids.codes or check the item texts"
                )
        if self.collision_rate > max_collision_rate:
            raise GateError(
                f"{self.collision_rate:.1%} of the items share a SID, gate sids.max_collision_rate is "
                f"{max_collision_rate:.1%}; raise sids.codes or sids.levels, or use sids.policy = 'reassign'"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"perplexity": self.perplexity}

    def lines(self) -> list[str]:
        """A few lines to print."""
        per_level = [
            f"  level {n + 1}: {used}/{self.codes} codes used, entropy {bits:.2f} bits (perplexity {2**bits:.0f}), "
            f"residual {rest:.4f}"
            for n, (used, bits, rest) in enumerate(zip(self.used, self.entropy_bits, self.residual, strict=True))
        ]
        rates = f"{self.collision_rate_before:.1%} -> {self.collision_rate:.1%}"
        return [
            f"{self.items} items, {self.distinct} distinct SIDs, largest bucket {self.largest_bucket}",
            f"collision rate {rates}, last code moved for {self.moved_share:.1%}",
            *per_level,
        ]


def report(
    before_NL: NDArray[np.int64], after_NL: NDArray[np.int64], codes: int, residual: tuple[float, ...]
) -> SidReport:
    """Describe SIDs before and after collisions were handled."""
    buckets = Counter(map(tuple, after_NL.tolist()))
    moved = (before_NL[:, -1] != after_NL[:, -1]).mean() if before_NL.shape == after_NL.shape else 0.0
    return SidReport(
        items=len(after_NL),
        codes=codes,
        used=_used(after_NL),
        used_before=_used(before_NL),
        entropy_bits=code_entropy(after_NL),
        residual=residual,
        distinct=len(buckets),
        largest_bucket=max(buckets.values()),
        collision_rate=collision_rate(after_NL),
        collision_rate_before=collision_rate(before_NL),
        moved_share=float(moved),
    )


def _used(codes_NL: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(len(np.unique(code_N)) for code_N in codes_NL.T)


def code_entropy(codes_NL: NDArray[np.int64]) -> tuple[float, ...]:
    """Entropy of each level's codes in bits; middle levels that concentrate (the hourglass) show as low ones."""
    return tuple(_entropy(code_N) for code_N in codes_NL.T)


def collision_rate(codes_NL: NDArray[np.int64]) -> float:
    """The share of items that share their SID."""
    sizes = Counter(map(tuple, codes_NL.tolist())).values()
    return sum(size for size in sizes if size > 1) / len(codes_NL)


def _entropy(code_N: NDArray[np.int64]) -> float:
    share = np.bincount(code_N) / len(code_N)
    share = share[share > 0]
    return float(-(share * np.log2(share)).sum())
