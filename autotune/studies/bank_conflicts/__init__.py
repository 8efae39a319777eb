"""A transpose through shared memory: predicted and measured bank conflicts."""
