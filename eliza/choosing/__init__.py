"""From a caller's choices to an answer."""
