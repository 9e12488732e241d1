"""What many runs found: tables, statistics, figures."""
