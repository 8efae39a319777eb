"""One trial: operands, check, time, counters, environment, results files."""
