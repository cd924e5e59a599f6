"""From the bytes of a request to its key, its identity and its fingerprint.

keys             the header, the checked key, the identity
key_places       where else a key may be: other headers, the body, a function
path_pattern     paths with parameters
fingerprint      what a request means, as a digest; the fields that count (RFC 6901)
comparison       is this the same request again, and which fields differ
canonical_json   RFC 8785
content_type     Content-Type; urlencoded and multipart forms
"""
