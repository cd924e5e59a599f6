"""Power cuts: what SQLite's store acknowledged is on the disk, whenever the power fails.

disk      what was written and synced, in order; and what a disk may hold after a cut
vfs       how that is found out: between SQLite and the operating system, in this very process
lives     what the store is asked meanwhile, and what it acknowledged
recording the two together
books     what was asked of the store, and what it acknowledged
audit     an image is opened with the real store, and compared
campaign  a recording, and its cuts; run as ``python -m tests.proof.power``
"""
