"""How fast Refold is beside its peers, as ratios measured in one run: `python -m benchmarks.speed`."""
