"""What is written down, byte by byte.

snapshot   the response of a completed key
requests   the request of a deferred or resumable route
packed     short forms of keys and fingerprints
sealed     how an encrypted value looks
"""
