"""Decisions from what this process counted itself: approximate mode and denial memory."""
