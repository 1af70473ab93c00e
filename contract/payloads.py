"""The payloads that a schedule can push: ordinary ones, and every kind of JSON that brokers get wrong.

A schedule names a payload by its number. 0 is the ordinary one. Most of the others carry the number `unique` inside,
so that each pushed message is told from every other; the few that cannot are bare.
"""

from __future__ import annotations

_UNIQUE = "@n@"


def _nested(depth: int) -> str:
    return "[" * depth + _UNIQUE + "]" * depth


PAYLOADS: tuple[str, ...] = (
    '{"n":@n@}',
    "null",
    "true",
    '{"n":@n@,"v":null}',
    '{"n":@n@,"v":[true,false,{}]}',
    '""',
    '{"n":@n@,"":"","v":[]}',
    "340282366920938463463374607431768211457",  # beyond 2^128
    '{"n":@n@,"v":18446744073709551617}',  # 2^64 + 1
    '{"n":@n@,"v":-9007199254740993}',  # first integer that a double cannot hold
    '{"n":@n@,"v":1e400}',
    '{"n":@n@,"v":[0.1,-0.0,1E+2,1e-400,0.30000000000000004,3.14159265358979323846264338327950288]}',
    _nested(200),
    '{"n":@n@,"v":"\u00e9 \u00df \u4e2d\u6587 \u0440\u0443\u0441 \u05d0\u05d1 \u0e01 \u2028\u2029 \ufeff \ufffd"}',
    '{"n":@n@,"v":"\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0010ffff e\u0301"}',
    r'{"n":@n@,"v":"\ud83d\ude00 \u00e9 \u4e2d"}',  # the same characters as escapes
    r'{"n":@n@,"v":"\" \\ \/ / \b \f \n \r \t \u0000 \u001f \u007f"}',
    r'{"n":@n@,"v":"\\u0041 \\\" \\\\"}',
    r'{"n":@n@,"v":["\ud800","\udfff\ud800"]}',  # halves of pairs, which UTF-8 cannot hold
    '{"n":@n@,"payload":{"payload":1},"data":[],"transactionId":"x","leaseId":null,"partition":7,"messages":[]}',
    '{"n":@n@,"__proto__":{},"$ref":"#","id":"\' OR 1=1 --","v":"<b>&amp;</b> {{7*7}} %s $1 ?"}',
    '{"n":@n@,"b":1,"a":2,"10":3,"9":4}',  # keys in no order
    ' { "n" : @n@ ,\t"v" : [ 1 , 2 ] }\n',  # space that means nothing
    '{"n":@n@,"v":"' + "0123456789" * 1000 + '"}',
    "@n@",
    '"@n@"',
    "[@n@,[],{}]",
)
"""Raw JSON texts; the number of the message stands where `@n@` is."""

ORDINARY = 0

BARE = frozenset(index for index, text in enumerate(PAYLOADS) if _UNIQUE not in text)
"""Those that look the same each time."""


def payload(index: int, unique: int) -> str:
    """The raw JSON text of payload `index` (taken modulo their number) for the message numbered `unique`."""
    return PAYLOADS[index % len(PAYLOADS)].replace(_UNIQUE, str(unique))
