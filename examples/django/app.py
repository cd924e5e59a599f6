"""What a server is given: ``examples.django.app:application`` (WSGI) or ``:asgi``."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django.settings")

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
asgi = get_asgi_application()
