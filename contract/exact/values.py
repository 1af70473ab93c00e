"""When two JSON texts are one value (contract.md section 2): exact numbers, the order of keys ignored."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache


@lru_cache(maxsize=4096)
def same_value(first: str, second: str) -> bool:
    """Whether two texts are one value; texts that cannot be read are taken to be the same."""
    if first == second:
        return True
    try:
        return _same(_read(first), _read(second))
    except (ValueError, ArithmeticError, RecursionError):
        return True


def _read(text: str) -> object:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal, parse_constant=_refuse, strict=False)


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _same(first: object, second: object) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    return first == second
