"""Adapters: from a server's bytes to an exchange and back. They know no states."""
