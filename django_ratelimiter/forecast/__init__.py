"""The effect of a change of the rules before it is saved: from a replay of access logs, and from recorded usage."""
