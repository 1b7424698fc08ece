"""Forecasts from the samples in the database: requests per caller and minute."""
