"""Nothing to cimport: what is here exists to be timed from Python."""
