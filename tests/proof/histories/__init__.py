"""Concurrent histories of real stores, and whether one order of single steps explains them.

calls      one call as it was recorded: what was asked, when, and what was told
orders     what players are told to do
player     lanes of one process, in both colours, on few keys; a process of its own by itself
stage      several players on one store, round by round
spec       the state table as a sequential specification, without time
checker    the search for an order in which the table gives every reply
spoilt     stores with one guard taken out, whose histories no order explains

Time plays no part in it. A duration is either some thousands of seconds, which no history lasts,
or less than nothing, so that what it limits is past from the start; whether a lease has lapsed or a
retention is over then follows from the order of operations alone. Times in replies are compared in
thousands of seconds from the reply's own instant.
"""
