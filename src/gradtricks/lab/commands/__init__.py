"""The commands: each module declares those of one panel of the help."""
