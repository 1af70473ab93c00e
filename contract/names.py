"""What partitions and transactionIds are called: plain, or awkward on purpose.

Each style turns a number into a legal name (contract 2: 1 to 255 characters of any kind but control characters).
"""

from __future__ import annotations

from collections.abc import Callable

STYLES: tuple[Callable[[str, int], str], ...] = (
    lambda kind, number: f"{kind}{number}",
    lambda kind, number: f"{kind} {number} a/b?c=d&e#f%2F+",
    lambda kind, number: f"\"{kind}\\{number}\" 'q' {{x}} ${{HOME}} `;--",
    lambda kind, number: f"партиция-{kind}-{number}-日本-\U0001f41d-é-e\u0301-\u202e",
    lambda kind, number: f"{kind.upper()}{number}" if number % 2 else f"{kind}{number - number % 2 + 1}",
    lambda kind, number: f"{kind}{number}-" + "x" * (255 - len(f"{kind}{number}-")),
    lambda kind, number: f"..{number}" if kind == "p" else f"null{number}",
)
"""0 plain; paths and queries; quotes; other scripts; names that differ in case only; 255 characters; dots and words."""


def name(style: int, kind: str, number: int) -> str:
    """The name of partition ("p") or transactionId ("t") `number` in a style, which is taken modulo their number."""
    return STYLES[style % len(STYLES)](kind, number)
