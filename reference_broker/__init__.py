"""The reference broker: a correct, embedded partitioned message broker with consumer groups over HTTP."""

from reference_broker.app import Broker, create_app
from reference_broker.engine import Engine
from reference_broker.model import Clock
from reference_broker.storage import Storage, StorageError, StorageRefused

__all__ = ["Broker", "Clock", "Engine", "Storage", "StorageError", "StorageRefused", "create_app"]
