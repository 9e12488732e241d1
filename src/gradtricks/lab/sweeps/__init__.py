"""Many runs: which ones."""
