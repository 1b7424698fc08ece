"""From the engine's counts to reports."""
