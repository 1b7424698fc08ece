"""The measurements, one subject per module, each in its own process: `python -m benchmarks.stages NAME FILE`.

Every stage has `measure(settings) -> results`, of JSON types.
"""
