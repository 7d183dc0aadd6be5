"""Backfill with predicted durations on real traces, beside what users say, what an oracle knows, and simpler queues."""
