"""The version of the suite."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata


@lru_cache(maxsize=1)
def suite_version() -> str:
    """The version of the suite that is installed; "0" where it runs from a checkout that nobody installed."""
    try:
        return metadata.version("broker-contract")
    except metadata.PackageNotFoundError:
        return "0"
