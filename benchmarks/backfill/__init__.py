"""Backfill with predicted durations on real traces, compared with user limits, known durations and simpler policies."""
