"""The memory that a replay will need: estimated before it begins, from blocks of lines in all parts of the logs."""
