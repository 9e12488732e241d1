"""The oracle: what can be computed of a diagnosis beforehand, in NumPy and plain Python."""
