"""The engine: exact limits, decided atomically. Imports no Django."""

from ..exceptions import EngineUnavailable, StaleRules
from .base import Charge, Engine, UsageCount, Verdict, Version
from .limits import Algorithm, Limit
from .memory import MemoryEngine

__all__ = [
    "Algorithm",
    "Charge",
    "Engine",
    "EngineUnavailable",
    "Limit",
    "MemoryEngine",
    "StaleRules",
    "UsageCount",
    "Verdict",
    "Version",
]
