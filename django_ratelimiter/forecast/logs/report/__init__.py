"""Reports of a replay: for people, for programs, and as one file of HTML."""
