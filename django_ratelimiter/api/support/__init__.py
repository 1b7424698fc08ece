"""For staff and their tools: one caller, acts for the caller, and explanations of decisions."""
