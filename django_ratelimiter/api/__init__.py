"""Each caller's own limits as JSON, for Django REST framework. Include `api.urls` to use it."""
