"""How long the admin's pages take on a large site: `python -m benchmarks.admin`."""
