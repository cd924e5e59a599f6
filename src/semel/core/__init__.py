"""What semel decides: no I/O, clock, randomness or thread in here."""
