"""How much memory a replay will take: estimated before it begins, from blocks of lines all over the logs."""
