"""The rule set: built, cached, matched."""
