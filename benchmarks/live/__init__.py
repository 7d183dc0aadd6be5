"""Benchmarks of the daemon: start latency, durable submissions, idle use, long history, and cost of an API call."""
