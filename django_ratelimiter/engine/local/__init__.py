"""Decisions from the counts of this process: approximate mode and denial memory."""
