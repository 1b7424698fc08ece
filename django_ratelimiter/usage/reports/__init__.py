"""Reports: from the counts in the database to figures for people."""
