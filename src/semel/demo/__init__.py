"""`semel demo`: a small payments API, a pretend provider, and what happens to money on bad days.

Everything is real but the money: processes, sockets, the store, the kill. `app.py` is the part to
read; the rest is stage machinery.
"""
