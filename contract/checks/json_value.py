"""When two JSON texts are the same value: numbers as exact decimals, the order of object keys ignored.

Parsing to floats would call 0.1 and 0.1000000000000000055 the same and lose 2**64 + 1, so numbers stay decimals.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from functools import lru_cache


def _number(text: str) -> dict[str, str]:
    """A number, tagged: objects are tagged too, so nothing else looks like it."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return {"number without decimal form": text.lower()}
    if value == 0:
        return {"number": "0"}
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(significant)
    return {"number": f"{'-' if sign else ''}{significant}e{exponent}"}


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return {"object": dict(pairs)}


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    parse_int=_number, parse_float=_number, parse_constant=_constant, object_pairs_hook=_object, strict=False
)


@lru_cache(maxsize=4096)
def canonical(text: str) -> str | None:
    """A text that is equal exactly for equal values; None where `text` is not JSON or nests too deep to compare."""
    try:
        return json.dumps(_DECODER.decode(text), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def same_value(first: str, second: str) -> bool | None:
    """Whether two texts are one value; None where that cannot be said."""
    if first == second:
        return True
    left, right = canonical(first), canonical(second)
    if left is None or right is None:
        return None
    return left == right
