"""The one error that ends a run without a verdict."""

from __future__ import annotations


class CouldNotJudge(Exception):
    """The run cannot be judged: exit code 2.

    The message is one sentence that shows the offending value and says what to do next. It is never a verdict on
    the broker.
    """
