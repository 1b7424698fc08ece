"""A minimal Django project: one view, behind the limiter that BENCH_LIMITER names."""
