"""Spare codes that are open: as entries of the item log, as rows for the engine, as vectors of the quantiser.

A checkpoint may reserve codes that no trained item has. Opening one is an entry of the log like any other, so every
replica, every restart and every rollback opens and closes the same codes in the same order; what the engine and the
quantiser need is worked out from the vector in the entry. `catalog_sync` tells the engine before a version that uses
the code is published. Which codes are worth opening is `codebook_growth`'s business.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from service.engine.base import TokenRow
from service.model.checkpoint import Checkpoint, ItemRecord
from service.model.code_rows import CodeRows
from service.model.quantizer import OpenedCode, ResidualQuantizer
from service.stores.item_log import LogEntry, code_name


@dataclass(frozen=True, slots=True)
class CodeChange:
    """What a step does to the codes: rows to write into the engine, the quantiser behind it, and all open codes."""

    rows: tuple[TokenRow, ...]
    quantizer: ResidualQuantizer
    opened: Mapping[str, OpenedCode]


class OpenedCodes:
    """Follows the openings of one checkpoint.

    Args:
        checkpoint: whose codes they are.
        quantizer: as the checkpoint has it.
        temperature: of the mixture that a new code's rows are.
    """

    def __init__(self, checkpoint: Checkpoint, quantizer: ResidualQuantizer, temperature: float) -> None:
        self._checkpoint, self._quantizer, self._temperature = checkpoint, quantizer, temperature
        self._opened: Mapping[str, OpenedCode] = {}

    def __len__(self) -> int:
        return len(self._opened)

    def free(self) -> list[list[int]]:
        """The spare codes that are closed, per level; none at the last."""
        space, taken = self._checkpoint.space, {(code.level, code.code) for code in self._opened.values()}
        spare = range(self._quantizer.codes, space.codes)
        levels = [[code for code in spare if (level, code) not in taken] for level in range(space.levels - 1)]
        return [*levels, []]

    def check(self, entry: LogEntry) -> None:
        """Prove that an entry opens a code of this checkpoint.

        Raises:
            ValueError: it does not.
        """
        opened = opened_code(entry)
        self._quantizer.with_opened([opened])
        if opened.code >= self._checkpoint.space.codes or entry.item_id != code_name(opened.level, opened.code):
            raise ValueError(f"code {opened.code} of level {opened.level} is no spare code of this checkpoint")

    def change(self, entries: Sequence[LogEntry]) -> CodeChange | None:
        """What entries about codes, in order, would change; None if nothing."""
        opened = dict(self._opened)
        for entry in entries:
            opened.pop(entry.item_id, None)
            if entry.op == "code":
                opened[entry.item_id] = opened_code(entry)
        touched = [name for name in {**self._opened, **opened} if self._opened.get(name) != opened.get(name)]
        if not touched:
            return None
        rows = tuple(self._row(self._opened.get(name), opened.get(name)) for name in touched)
        return CodeChange(rows, self._quantizer.with_opened(list(opened.values())), opened)

    def apply(self, change: CodeChange) -> None:
        """Take a change that the engine has taken."""
        self._opened = change.opened

    @cached_property
    def _rows(self) -> CodeRows:
        """Read at the first opening: most services never need them."""
        tensors = self._checkpoint.catalog_tensors()
        rows = self._checkpoint.token_rows()
        return CodeRows(self._quantizer.codebooks_LKD, tensors.codes_NL, *rows, self._temperature)

    def _row(self, before: OpenedCode | None, after: OpenedCode | None) -> TokenRow:
        if after is not None:
            return TokenRow(after.level, after.code, *self._rows.opened(after))
        assert before is not None
        return TokenRow(before.level, before.code, *self._rows.trained(before.level, before.code))


def code_entry(opened: OpenedCode) -> LogEntry:
    """The entry that opens a code; versions and position are the log's to give."""
    name, vector = code_name(opened.level, opened.code), np.asarray(opened.centroid_D, np.float32).tobytes()
    place = {"level": opened.level, "code": opened.code}
    record = ItemRecord(name, f"code {opened.code} of level {opened.level}", "", place)
    digest = hashlib.sha256(vector).hexdigest()
    return LogEntry(0, 0, "", "code", name, record, digest, (opened.level, opened.code), vector=vector)


def opened_code(entry: LogEntry) -> OpenedCode:
    """The inverse of `code_entry`.

    Raises:
        ValueError: it opens no code, or its vector is none.
    """
    if entry.op != "code" or len(entry.sid) != 2:
        raise ValueError("not the opening of a code")
    centroid_D = np.frombuffer(entry.vector, np.float32)
    if not np.isfinite(centroid_D).all():
        raise ValueError("the code's vector is not finite")
    return OpenedCode(*entry.sid, tuple(centroid_D.tolist()))
