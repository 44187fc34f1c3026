"""Field types that several routes share: what a name or a text may be, alternatives by JSON type.

Tags of alternatives begin with ``~`` so that error pointers can leave them out. No route's own body lives here.
"""

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

# Control characters are refused: they separate fields in storage keys and forge lines in logs.
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Text = Annotated[str, Field(max_length=20_000)]


class Body(BaseModel):
    """What came from outside: strict types, no unknown fields, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_nearest(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Say of an unknown field which known one it is most like."""
        try:
            return handler(data)
        except ValidationError as error:
            found = error.errors(include_url=False)
            if not any(_is_unknown(each) for each in found):
                raise
            raise ValidationError.from_exception_data(error.title, [cls._with_hint(each) for each in found]) from None

    @classmethod
    def _with_hint(cls, error: ErrorDetails) -> InitErrorDetails:
        message = error["msg"]
        if _is_unknown(error):
            near = difflib.get_close_matches(str(error["loc"][0])[:64], cls.model_fields, n=1, cutoff=0.5)
            message = f"there is no such field; did you mean {near[0]}?" if near else "there is no such field"
        kind = PydanticCustomError(error["type"], message.replace("{", "("))
        return InitErrorDetails(type=kind, loc=error["loc"], input=None)


def _is_unknown(error: ErrorDetails) -> bool:
    """An unknown field of the object itself; those of objects inside it are named by their own models."""
    return error["type"] == "extra_forbidden" and len(error["loc"]) == 1


def by_type(kinds: dict[type, str], otherwise: str) -> Callable[[Any], str]:
    """A discriminator by the exact type of the JSON value."""
    return lambda value: kinds.get(type(value), otherwise)
