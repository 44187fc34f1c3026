"""Field types that several routes share: what a name or a text may be, alternatives by JSON type.

Tags of alternatives begin with ``~`` so that error pointers can leave them out. No route's own body lives here.
"""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# Control characters are refused: they separate fields in storage keys and forge lines in logs.
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Text = Annotated[str, Field(max_length=20_000)]


class Body(BaseModel):
    """What came from outside: strict types, no unknown fields, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def by_type(kinds: dict[type, str], otherwise: str) -> Callable[[Any], str]:
    """A discriminator by the exact type of the JSON value."""
    return lambda value: kinds.get(type(value), otherwise)
