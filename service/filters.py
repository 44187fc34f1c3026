"""Filters: which items a request allows, by the attributes that items declare, as masks over the rows of a catalogue.

A field is declared when an item of the checkpoint or a posted one has it; asking for another is an error that names the
nearest. Values are kept by column: numbers as float64, texts, flags and list members as codes of a growing vocabulary
with (row, code) pairs, so that a rule over a million items costs a few comparisons of arrays. Rows are only ever added;
which of them live is the table's business.

An item without the field fails ``include``, ``min`` and ``max`` and passes ``exclude``. Values compare exactly, after
the cleaning that posted text gets.
"""

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from service.errors import InvalidRequestError
from service.model.item_text import MAX_TITLE_CHARS, AttributeValue, clean_text

Scalar = str | float | int | bool
Mask = NDArray[np.bool_]

NEAR = 0.4
GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class FilterRule:
    """What an item must be: one of the values in each ``include``, none of an ``exclude``; bounds are inclusive."""

    include: Mapping[str, Sequence[Scalar]]
    exclude: Mapping[str, Sequence[Scalar]]
    minimum: Mapping[str, float]
    maximum: Mapping[str, float]

    @property
    def key(self) -> str:
        """A digest: equal for rules that say the same."""
        parts = [_sorted_values(self.include), _sorted_values(self.exclude), dict(self.minimum), dict(self.maximum)]
        return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:24]

    def clauses(self) -> Iterable[tuple[str, str]]:
        """(JSON pointer below the filter, field) of each clause."""
        named = (("include", self.include), ("exclude", self.exclude), ("min", self.minimum), ("max", self.maximum))
        return ((f"/{clause}/{field}", field) for clause, fields in named for field in fields)


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field that filters may name: whether numbers occur in it, and some of its other values, most common first."""

    name: str
    numeric: bool
    values: tuple[Scalar, ...]


class Column:
    """The values of one field: numbers by row, everything else as (row, code) pairs in row order."""

    def __init__(self) -> None:
        self._numbers = np.full(0, np.nan)
        self._codes: dict[tuple[bool, Scalar], int] = {}
        self._pairs = np.zeros((2, 0), np.int32)
        self._used = 0
        self._numeric = 0

    @property
    def numeric(self) -> bool:
        """Whether any value was a number."""
        return self._numeric > 0

    def add(self, row: int, value: AttributeValue) -> None:
        """Note a row's value; rows come in ascending order."""
        if isinstance(value, (list, tuple)):
            for part in value:
                self._add_code(row, part)
        elif isinstance(value, (str, bool)):
            self._add_code(row, value)
        else:
            self._add_number(row, float(value))

    def any_of(self, values: Sequence[Scalar], first: int, last: int) -> Mask:
        """Which of the rows ``first..last-1`` have one of the values, bool [last - first]."""
        mask = np.zeros(last - first, bool)
        numbers = [float(value) for value in values if not isinstance(value, (str, bool))]
        if numbers and self._numeric:
            mask |= np.isin(self._numbers_of(first, last), numbers)
        codes = [code for value in values if (code := self._codes.get(_typed(value))) is not None]
        if codes:
            begin, end = np.searchsorted(self._pairs[0, : self._used], (first, last))
            rows, held = self._pairs[0, begin:end], self._pairs[1, begin:end]
            wanted = np.zeros(len(self._codes), bool)
            wanted[codes] = True
            mask[rows[wanted[held]] - first] = True
        return mask

    def at_least(self, bound: float, first: int, last: int) -> Mask:
        """Which of the rows have a number of at least ``bound``."""
        return np.asarray(self._numbers_of(first, last) >= bound)

    def at_most(self, bound: float, first: int, last: int) -> Mask:
        """Which of the rows have a number of at most ``bound``."""
        return np.asarray(self._numbers_of(first, last) <= bound)

    def values(self, limit: int) -> tuple[Scalar, ...]:
        """The values that are no numbers, most common first."""
        counts = np.bincount(self._pairs[1, : self._used], minlength=len(self._codes))
        names = [value for _, value in self._codes]
        return tuple(names[code] for code in np.argsort(-counts, kind="stable")[:limit])

    def _add_number(self, row: int, value: float) -> None:
        if row >= len(self._numbers):
            grown = np.full(max(64, int(GROWTH * row) + 1), np.nan)
            grown[: len(self._numbers)] = self._numbers
            self._numbers = grown
        self._numbers[row] = value
        self._numeric += 1

    def _add_code(self, row: int, value: Scalar) -> None:
        code = self._codes.setdefault(_typed(value), len(self._codes))
        if self._used == self._pairs.shape[1]:
            grown = np.zeros((2, max(64, int(GROWTH * self._used))), np.int32)
            grown[:, : self._used] = self._pairs
            self._pairs = grown
        self._pairs[:, self._used] = row, code
        self._used += 1

    def _numbers_of(self, first: int, last: int) -> NDArray[np.float64]:
        held = self._numbers[first:last]
        return held if len(held) == last - first else np.append(held, np.full(last - first - len(held), np.nan))


class Columns:
    """All declared fields."""

    def __init__(self) -> None:
        self._columns: dict[str, Column] = {}

    def add(self, row: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Note a row's attributes; rows come in ascending order."""
        for field, value in attributes.items():
            column = self._columns.get(field)
            if column is None:
                column = self._columns[field] = Column()
            column.add(row, value)

    def declared(self, values: int = 50) -> list[DeclaredField]:
        """The fields, by name."""
        found = sorted(self._columns.items())
        return [DeclaredField(name, column.numeric, column.values(values)) for name, column in found]

    def check(self, rule: FilterRule) -> None:
        """Refuse what no item declares.

        Raises:
            InvalidRequestError: a field is unknown, or has no numbers where bounds are given.
        """
        for pointer, field in rule.clauses():
            if field not in self._columns:
                raise InvalidRequestError(self._unknown(field), pointer=f"/filter{pointer}")
        for clause, bounds in (("min", rule.minimum), ("max", rule.maximum)):
            for field in bounds:
                if not self._columns[field].numeric:
                    detail = f"{field!r} holds no numbers; use include or exclude"
                    raise InvalidRequestError(detail, pointer=f"/filter/{clause}/{field}")

    def mask(self, rule: FilterRule, first: int, last: int) -> Mask:
        """Which of the rows ``first..last-1`` the rule allows, bool [last - first]."""
        mask = np.ones(last - first, bool)
        for field, values in rule.include.items():
            mask &= self._columns[field].any_of(_cleaned(values), first, last)
        for field, values in rule.exclude.items():
            mask &= ~self._columns[field].any_of(_cleaned(values), first, last)
        for field, bound in rule.minimum.items():
            mask &= self._columns[field].at_least(bound, first, last)
        for field, bound in rule.maximum.items():
            mask &= self._columns[field].at_most(bound, first, last)
        return mask

    def _unknown(self, field: str) -> str:
        near = difflib.get_close_matches(field, self._columns, n=1, cutoff=NEAR)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(self._columns)[:10]) or 'none'}"
        return f"no item has a field {field[:60]!r}; {hint}"


def _typed(value: Scalar) -> tuple[bool, Scalar]:
    """True and 1 are equal to Python but not to people."""
    return isinstance(value, bool), value


def _cleaned(values: Sequence[Scalar]) -> list[Scalar]:
    return [clean_text(value, MAX_TITLE_CHARS) if isinstance(value, str) else value for value in values]


def _sorted_values(fields: Mapping[str, Sequence[Scalar]]) -> dict[str, list[str]]:
    return {field: sorted(f"{type(value).__name__}:{value}" for value in values) for field, values in fields.items()}
