"""From what the engine counted to what people read."""
