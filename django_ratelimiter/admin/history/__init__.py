"""The history of the rules: versions, what changed, and the way back."""
