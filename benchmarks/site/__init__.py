"""The least Django project: one view, and before it the limiter that BENCH_LIMITER names."""
