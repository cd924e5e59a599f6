"""The application under load, and what is put around it; imported by the server's process.

app            the application alone; it counts how often it did its work
guarded        with semel around it
peers          with another package around it
with_console   with semel, and its console mounted
"""
