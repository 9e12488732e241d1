"""Where runs are kept."""

DEFAULT_STORE = "_build/runs"
