"""A load test of an hour: `python -m tests.soak`. Is memory at the end what it was at the beginning?"""
