"""Telling people what happens."""
