"""What is measured, one subject to a module, each in a process of its own: `python -m benchmarks.stages NAME FILE`.

Every stage has `measure(settings) -> results`, of what JSON knows.
"""
