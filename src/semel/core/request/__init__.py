"""From the bytes of a request to its key, its identity and its fingerprint.

keys             the header, the checked key, the identity
fingerprint      what a request means, as a digest
comparison       is this the same request again, and which fields differ
canonical_json   RFC 8785
forms            urlencoded and multipart bodies
media_type       Content-Type
json_pointer     RFC 6901
"""
