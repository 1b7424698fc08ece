"""Collecting: counts from Redis into the database."""
