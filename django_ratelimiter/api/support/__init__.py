"""For staff and their tools: one caller, what can be done for them, and why a request is answered as it is."""
