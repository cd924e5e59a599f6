"""Benchmarks: how fast semel is, beside the bare application, its peers and the raw limits.

``make bench`` prints one table:

cases/      what is measured: each case is one line of the table
served/     the applications under load
generators/ who sends the load
stage       the stores and processes that a run needs, their cores, and how long a case takes
rounds      measures every case once in each round
plans       patterns of keys, and how often each may run the handler
load        one burst of load, by wrk or by our own generator
measure     what a process costs, from /proc; which cores it may use
machine     machine and versions, for the head of the table
table       the table, in Markdown
aims        what the project wants to reach, beside what was reached
results/    tables that were kept

Programs of their own, each started with ``python -m bench.NAME``:

calls       calls of semel's own functions in one request
check       `semel check` against semel and other packages
console     the pages of the console: their cost, and whom they disturb
figures     CPU and bytes for each key, written to figures.toml
scale       nodes and disk for a rate of requests, computed from figures.toml
lists       lists and counts for people, in a store of many records
rows        what each part of a row costs
schema      indexes, fillfactors and partitions
steadiness  ``make steadiness``: the tests ten times, some beside busy loops

filling     fills a store with records, for console and lists
visitors    people who look at the console, for console
pgbench     the store's statements as pgbench scripts, for schema and cases/raw
"""
