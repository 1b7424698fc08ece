"""The rule set: building, caching and matching."""
