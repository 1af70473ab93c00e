"""Where schedules are played: the reference broker in virtual time, or a broker behind a URL."""

from contract.targets.simulated import Simulated
from contract.targets.target import BROKER_FAULTS, REQUEST_FAULTS, Target
from contract.targets.url import Url

__all__ = ["BROKER_FAULTS", "REQUEST_FAULTS", "Simulated", "Target", "Url"]
