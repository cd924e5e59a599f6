"""Every operation of a store fails once: each in turn, in each of four ways, on every store.

stage   an application whose handlers go every way, and what becomes of a key in the end
plays   what is asked of it, one after the other
"""
