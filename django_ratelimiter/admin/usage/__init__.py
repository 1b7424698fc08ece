"""Usage reports."""
