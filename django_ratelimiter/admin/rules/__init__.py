"""Rules and their limits."""
