"""The parts of `tools/benchmark.py`."""
