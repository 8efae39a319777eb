"""GEMMs with few rows or few columns, which cost what it costs to read the larger operand."""
