"""Tree attention: ``reference`` defines what is right, every other module is a faster way to the same numbers."""
