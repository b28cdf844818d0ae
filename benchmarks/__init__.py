"""Measurements, and no part of the product. `parity` and `vs_tf_pss` are the programs: `python -m benchmarks.NAME`."""
