"""Access logs: their files, their formats, and the requests in their lines."""
