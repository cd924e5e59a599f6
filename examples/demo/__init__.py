"""The demo: a payments API, a pretend provider, and what happens to money on bad days.

Everything is real but the money: processes, sockets, the store, the kill. `make demo`, or
`semel demo` from a clone. `app.py` is the part to read; the rest plays the scenes.

app         the payments API, as a user of semel writes it
gateway     its way to the provider, with a time-out
provider    the pretend provider, a server of its own
ledger      the provider's book of charges
serve       the API as a process under uvicorn
console     the console as a process, on the store of the demo
servers     starts, kills and ends the servers
client      a merchant's HTTP client
records     semel's record of a payment, and the operator who settles it
scenes      the six scenes
roll_out    another four: the same API in shadow, then with its keys enforced
scene_run   one run of a scene: requests, expectations, complaints
printer     what is printed
play        all scenes and the verdict
"""
