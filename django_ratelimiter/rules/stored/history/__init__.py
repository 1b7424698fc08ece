"""The history of the rules: what each version changed, and the way back to one."""
