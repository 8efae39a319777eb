"""One trial: operands, check, time, counters, environment, and results files."""
