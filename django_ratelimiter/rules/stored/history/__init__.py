"""The history of the rules: what each version changed, and how to restore one."""
