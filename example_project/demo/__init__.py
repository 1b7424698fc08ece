"""The demo: `python -m example_project.demo [--once]` shows the rate limiter at work and checks it from outside."""
