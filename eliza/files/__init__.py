"""Files and folders that models come in."""
