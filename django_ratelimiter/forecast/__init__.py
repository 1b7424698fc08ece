"""What a change of the rules would do, before it is saved: by replay of access logs, and from recorded usage."""
