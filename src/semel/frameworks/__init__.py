"""One adapter for each framework: fastapi, flask, litestar and django/.

Every adapter has the same names:

install(app, guard)        guard an application; Django has settings instead (see `django`)
guarded(guard, policy)     claim where the decorator stands, below authentication: flask, django
transaction, session       the open transaction of an atomic route; Django's is its own connection

A policy for one endpoint is ``@guard.route(policy)`` everywhere. Applications of other frameworks
are guarded from outside, by ``guard.asgi(app)`` or ``guard.wsgi(app)``.

``alembic`` is no adapter: it keeps Alembic away from semel's tables.
"""
