"""Read a notebook's parameters and settings, and write values exactly."""
