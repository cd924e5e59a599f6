"""The tests of semel. Each folder of `src/semel` has one here with the same name.

Besides:

unit/       the whole package: layout, public names, settings
docs/       the pages of the documentation
examples/   the applications in `examples`
demo/       `semel demo`
types/      code that type checkers must accept or refuse
bench/      the benchmarks
proof/      the campaigns: kills, power cuts, faults, every schedule
servers/    the servers that tests start

What tests share:

conftest      databases, poolers, a fixed way of running
waiting       waits for a condition, with one limit
forms         all combinations in `make proof`, those that differ in `make test`
databases     the application's side of a database, in each driver
backends      puts another store under a guard that exists
scene         records in doubt, on any store
time_travel   moves what a store keeps into the past
ears          hears every event of a guard
canary        looks for keys, bodies and tokens where they may not be
"""
