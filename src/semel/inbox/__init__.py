"""Webhooks of providers: proved, taken in once, and settling what they are about.

inbox   what is done with an event
http    the same under ASGI and WSGI servers
"""
