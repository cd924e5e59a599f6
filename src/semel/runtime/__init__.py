"""What one process has: one runtime for each guard.

runtime           all of it, tied together; which keys this process has probably met
operation         what a running handler can ask and do
recovery_points   recovery points as a handler uses them
leases            leases, fences, their clock, and the keeper, whose threads renew them
write_retries     writes that must reach the store although nobody waits for them
waiters           requests that wait for another one with the same key
transactions      operations of an exchange that has a transaction open
replay_cache      answers repeated for a while without asking the store
breaker           refuses at once while the store is out; does the store answer
pools             how many connections the store has open, for metrics
notables          what is decided about requests and worth a look later
shadow            what is counted of routes in shadow
limits            how much a tenant may ask for; asked, with the breaker, before the store is
events            what is told to subscribers, and the catalogue of its kinds
flow_runner       runs flows of a worker or an operator; calls functions that may hang
"""
