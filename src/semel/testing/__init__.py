"""For tests: of applications that use semel, and of stores.

A test gives its guard a store of its own, moves that store's clock, does what workers would do,
ends the process at a named place, and looks at what became of it. Nothing here is for production:
no other part of semel imports it.

private_store   the store in the place of a guard's, and what a test does with it
clock           its clock
due_work        what workers do, once
process         a process that ends at a named place
watched         a backend whose every step is seen
assertions      replays and effects
contract        what every store must do, for people who write one
"""

from semel.testing.assertions import EffectSeen, assert_replayed
from semel.testing.clock import StoreClock
from semel.testing.private_store import PrivateStore
from semel.testing.process import ProcessCrashed

__all__ = [
    "EffectSeen",
    "PrivateStore",
    "ProcessCrashed",
    "StoreClock",
    "assert_replayed",
]
