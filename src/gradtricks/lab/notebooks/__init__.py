"""What a notebook declares, and the values that it is given."""
