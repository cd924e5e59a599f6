"""The inbox: webhooks of providers, which settle unknown outcomes.

inbox   verifies an event, takes it in once, and settles the record it is about; ASGI and WSGI
"""
