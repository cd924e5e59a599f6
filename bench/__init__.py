"""Benchmarks: how fast semel is, beside the bare application, its peers and the raw limits."""
