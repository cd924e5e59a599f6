"""Two versions of semel on one store, as in every upgrade; and what the first one left behind.

node     a process with an application, of whichever version is on its path
copies   later versions, made of this one
first    what the first version leaves in a store, and how a later one must find it
frozen   the same, as files
"""
