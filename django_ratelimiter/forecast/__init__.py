"""What a change of the rules would do, before it is saved: replay of access logs by the algorithms themselves."""
