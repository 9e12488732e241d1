"""Many runs: how they are carried out and seen."""
