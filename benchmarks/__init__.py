"""Measurements. Each module is a program: `python -m benchmarks.NAME`. Nothing here is part of the product or its tests."""
