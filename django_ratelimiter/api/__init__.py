"""A JSON API of rules, usage and each caller's own limits, for Django REST framework. Include `api.urls` to use it."""
