"""Studies: experiments whose results files are committed."""
