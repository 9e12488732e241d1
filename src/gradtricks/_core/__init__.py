"""Shared by both frameworks, for all but tensors: checks, structures, verdicts, compiled loops."""
