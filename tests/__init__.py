"""The tests of semel."""
