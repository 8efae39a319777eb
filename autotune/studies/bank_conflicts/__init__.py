"""A transpose through shared memory: measured bank conflicts against predicted ones."""
