"""Reporting: counts from the database to people."""
