"""A model checker that runs the shipping core: every schedule, every crash point, small worlds.

plays      the core's own generators, driven reply by reply; a play's past is all that it is
handlers   the handlers of the applications in these worlds, and what a provider counts
store      one step of the memory store on a state that can be hashed
state      where a world stands, in plain tuples
worlds     scenarios: a policy, who takes part, what may go wrong
cast       who takes part, and the flow that each of them is
ground     the store and the plays of one world
outcomes   where each move leads
engine     the moves that a state allows, faults among them
promises   what must always hold, one function for each promise
healing    after the faults: everything runs until it is quiet, and then must be settled
search     all schedules or many, what was covered, and the shortest schedule that breaks a promise
mutants    guards taken out, one at a time: the search must notice every one
"""
