"""Many runs: how they are carried out."""
