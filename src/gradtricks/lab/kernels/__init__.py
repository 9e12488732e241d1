"""Where a notebook's cells are executed."""
