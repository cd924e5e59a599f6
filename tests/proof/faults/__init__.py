"""Faults of the store, under load, through the real adapters; counted by books of our own.

books      where a handler's effect is entered: a log file, or a table of the same transaction
crowd      clients that send every key several times over, again and again until there is an end
records    what stands in a store, read without semel
verdict    duplicates, lost, wedged, differing: what a campaign came to
cuts       connections cut at a commit: it arrived, it did not, or it arrives later
upheavals  servers that are killed and started again, and primaries that are replaced
full       a file system without room; a program, since it needs one of its own
clocks     nodes whose clocks are hours off; an application, since they need processes
skew       who holds a key on nodes whose clocks differ
jumps      a clock that is set while handlers run
careless   what a store or an adapter must not make of an error: the positive controls
campaign   the crowd, and what befalls it
placed     one fault at a gate, for `make test`: nothing of it is left to chance
"""
