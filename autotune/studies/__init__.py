"""Studies: experiments with committed results files."""
