"""What rules would do with the requests of access logs, or would have done."""
