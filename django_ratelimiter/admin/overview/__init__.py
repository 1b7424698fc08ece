"""The app's front page in the admin: how the limiter stands, what it rejects, and what needs attention."""
