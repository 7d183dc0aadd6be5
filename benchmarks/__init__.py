"""Benchmarks of Refold. Speed is compared with peers as ratios measured in one run: `python -m benchmarks.speed`."""
