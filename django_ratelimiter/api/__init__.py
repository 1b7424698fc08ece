"""A JSON API of rules, usage and each caller's own limits, for the REST framework. Include `api.urls` to have it."""
