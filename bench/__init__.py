"""Benchmarks: how fast semel is, beside the bare application."""
