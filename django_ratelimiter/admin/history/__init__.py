"""The history of the rules: versions, their changes, and restoring one."""
