"""Callers: tiers, assignments and access entries."""
