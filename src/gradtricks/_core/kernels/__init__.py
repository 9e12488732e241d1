"""Loops that Numba compiles, on NumPy arrays; both frameworks use them, and import them at first use."""
