"""The WSGI application: `gunicorn example_project.wsgi --workers 2 --threads 8`."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

# Serves the admin's own CSS without a web server: good enough for an example, too slow for a site.
application = StaticFilesHandler(get_wsgi_application())
