"""Where schedules are played: in virtual time in this process, by a command, or on a broker behind a URL."""

from contract.targets.app import App
from contract.targets.command import Command
from contract.targets.simulated import Simulated
from contract.targets.target import BROKER_FAULTS, REQUEST_FAULTS, Seen, Target, deterministic
from contract.targets.url import Url

__all__ = ["BROKER_FAULTS", "REQUEST_FAULTS", "App", "Command", "Seen", "Simulated", "Target", "Url", "deterministic"]
