"""What is measured of this project: the engine by itself, and the whole path of a request."""
