"""Two versions of semel on one store, as in every upgrade; and what the first one left behind.

node     a process with an application, of whichever version is on its path
copies   later versions, made of this one
frozen   what is kept of the first schema, to be read by all that follow
"""
