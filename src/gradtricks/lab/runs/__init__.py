"""One run: planned, executed, recorded, repeated."""
