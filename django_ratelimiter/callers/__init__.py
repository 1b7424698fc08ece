"""One caller, as an operator asks about them: who it is, what they may do and why, what is left, and acts on it."""
