"""Tests of the page of a caller."""
