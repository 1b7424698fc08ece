"""Pure values that settings, models and rules share."""
