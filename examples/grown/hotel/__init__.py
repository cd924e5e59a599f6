"""Books rooms. Knows nothing of semel: docs/howto/frameworks/existing-project.md brings it in."""
