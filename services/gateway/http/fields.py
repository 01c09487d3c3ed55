"""Field types and forms that bodies, queries and answers share.

The one thing not to break: an amount enters as a decimal string only. A JSON number may have been a
float somewhere on its way.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from contracts.ledger import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX
from contracts.types import Name, Wire
from services.gateway.domain.money import USD_PATTERN, parse_usd, usd_text
from services.gateway.domain.names import EMAIL_CHARS_MAX, clean_email, clean_name

T = TypeVar("T")
SKIP_MAX = 1_000_000

SafeName = Annotated[Name, AfterValidator(clean_name)]
"""A name that people read: no control characters, none that turn the direction of writing."""
Email = Annotated[
    str,
    Field(min_length=3, max_length=EMAIL_CHARS_MAX),
    AfterValidator(clean_email),
    WithJsonSchema({"type": "string", "format": "email", "examples": ["ana@example.org"]}),
]
_SERIALIZE = PlainSerializer(usd_text, return_type=str, when_used="json")


def _above_zero(value: object) -> int:
    nanousd = parse_usd(value)
    if nanousd == 0:
        raise ValueError("write an amount above zero, or null for no cap")
    return nanousd


def _shown(value: object) -> int:
    """Amounts of answers are integers in the code and strings where an answer is read back."""
    if isinstance(value, str):
        return -parse_usd(value[1:]) if value.startswith("-") else parse_usd(value)
    if isinstance(value, int):
        return value
    raise ValueError("an amount is an integer of nano-USD or a decimal string")


def _usd_schema(pattern: str, description: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "type": "string",
            "pattern": pattern,
            "description": description,
            "examples": ["12.500000"],
        }
    )


_IN = "USD as a decimal string: no sign, no exponent, at most nine fractional digits."
UsdIn = Annotated[int, BeforeValidator(parse_usd), _SERIALIZE, _usd_schema(USD_PATTERN, _IN)]
"""An amount that a caller states, in nano-USD; on the outside a decimal string."""
UsdCap = Annotated[int, BeforeValidator(_above_zero), _SERIALIZE, _usd_schema(USD_PATTERN, _IN)]
"""A cap: above zero (facts.md 2.1)."""
Usd = Annotated[
    int,
    BeforeValidator(_shown),
    _SERIALIZE,
    _usd_schema(
        r"^-?[0-9]+\.[0-9]{6,9}$",
        "USD, exact: at least six fractional digits, trailing zeros beyond them cut, no exponent.",
    ),
]
"""An amount in an answer."""


class Body(Wire):
    """What a caller sends: an unknown field is a typing error, so it is named and refused."""

    model_config = ConfigDict(extra="forbid")


class Patch(Body):
    """A partial change: absent fields stay as they are."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset()
    """Where null is a value of its own."""

    @model_validator(mode="after")
    def _null_is_no_value(self) -> Self:
        for name in self.model_fields_set - self.NULLABLE:
            if getattr(self, name) is None:
                raise ValueError(f"{name} cannot be null: leave it out to keep it")
        return self

    def given(self) -> dict[str, Any]:
        """The fields that were sent, with their values."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Query(Body):
    """Parameters of a GET; an unknown one is refused: a typo must not widen a filter."""


class TakesEffect(Wire):
    """An answer about a change that the ledger has to apply; 202 where it is not in effect yet."""

    effective: bool
    """Whether the next request is decided under it; also true where nothing has to be applied."""


class NoQuery(Query):
    """No parameters."""


class NoBody(Body):
    """No body is read."""


class PageQuery(Query):
    """A page of a list."""

    skip: Annotated[int, Field(ge=0, le=SKIP_MAX)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX)] = PAGE_ROWS_DEFAULT


class Page(Wire, Generic[T]):
    """A page, and the total of everything that the filter selects."""

    items: tuple[T, ...]
    total: int
