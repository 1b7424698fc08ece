"""The app's front page in the admin: the state of the limiter, what it rejects, and what needs attention."""
