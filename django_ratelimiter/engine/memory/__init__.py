"""The engine without Redis: for one process, in tests, during outages, and for tools."""

from .engine import MemoryEngine

__all__ = ["MemoryEngine"]
