"""What both frameworks run that is not a tensor: checks, structures, verdicts, compiled loops."""
