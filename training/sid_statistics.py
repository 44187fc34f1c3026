"""How the SIDs of a checkpoint are spread over the code space, for a reader's eye."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from service.model.checkpoint import open_checkpoint


def sid_statistics(folder: Path) -> tuple[dict[str, Any], Table]:
    """Figures and a table with a line per level.

    Raises:
        CheckpointError: the folder is no checkpoint.
    """
    checkpoint = open_checkpoint(folder)
    codes_NL = checkpoint.catalog_tensors().codes_NL
    levels = [_level(codes_NL, level) for level in range(checkpoint.space.levels)]
    distinct = len(np.unique(codes_NL, axis=0))
    figures = {
        "items": len(codes_NL),
        "levels": checkpoint.space.levels,
        "codes": checkpoint.space.codes,
        "distinct_sids": distinct,
        "items_per_sid": len(codes_NL) / max(distinct, 1),
        "per_level": levels,
    }
    return figures, _table(levels, f"{len(codes_NL)} items, {distinct} distinct SIDs")


def _level(codes_NL: NDArray[np.integer], level: int) -> dict[str, float]:
    _, count = np.unique(codes_NL[:, level], return_counts=True)
    _, below = np.unique(codes_NL[:, : level + 1], axis=0, return_counts=True)
    share = count / count.sum()
    return {
        "used": len(count),
        "entropy_bits": float(-(share * np.log2(share)).sum()),
        "prefixes": len(below),
        "items_per_prefix": float(below.mean()),
        "largest_prefix": int(below.max()),
    }


def _table(levels: list[dict[str, float]], title: str) -> Table:
    table = Table(title=title)
    for heading in ("level", *levels[0]):
        table.add_column(heading.replace("_", " "), justify="right")
    for number, row in enumerate(levels, 1):
        table.add_row(str(number), *(f"{value:g}" if value == int(value) else f"{value:.2f}" for value in row.values()))
    return table
