"""From a GGUF file to what other runtimes read."""
