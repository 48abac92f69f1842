"""Vocabularies from the tokenizer files of models.

`read_vocab` reads a `tokenizer.json` (package `tokenizers`) or a SentencePiece
`*.model` (package `sentencepiece`). `from_gguf` writes a `tokenizer.json` from what a
GGUF file says of its tokenizer. Both give the ids that llama.cpp gives for the same
tokenizer, and its fingerprint.
"""

from eliza.tokenizers.gguf import from_gguf
from eliza.tokenizers.read import read_vocab

__all__ = ["from_gguf", "read_vocab"]
