"""Results of many runs: tables, statistics, figures."""
