"""The logger of the package."""

import logging

logger: logging.Logger = logging.getLogger("django_ratelimiter")
