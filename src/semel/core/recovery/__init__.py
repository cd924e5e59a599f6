"""Recovery points: where an operation goes on after a crash.

points             the flows behind `op.phase` and `op.call`
journal            the points an operation has reached, with their results
was_sent           what an exception of an HTTP client proves about the call
client_internals   private names of HTTP clients that `was_sent` reads
"""
