"""Forecasts from the samples that the database holds: requests per caller and minute."""
