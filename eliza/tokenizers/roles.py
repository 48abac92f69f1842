"""Which ids are special, and which end a generation: by their texts.

A tokenizer's file does not say what ends a generation, and its attributes are wrong
often enough that llama.cpp goes by the texts of tokens. The same rules are kept here,
so that a vocabulary has the same special ids on every runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Roles", "roles"]

#: What ends a turn or a text.
_TURN_ENDS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> "
    "<end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] "
    "<|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>".split()
)
#: What ends a piece of code to be filled in: of each line, one.
_FILL_ENDS = (
    ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"),
    ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ("<|file_sep|>",),
)
#: Ends a text, where nothing else ends a turn.
_TEXT_ENDS = frozenset(["<｜end▁of▁sentence｜>"])
_TURN_MARKS = frozenset(["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"])
#: What surrounds code to be filled in.
_FILL_MARKS = frozenset(
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> "
    "<|code_prefix|> <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> "
    "▁<SUF> <|code_suffix|> <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> "
    "<MID> ▁<MID> <|code_middle|>".split()
)
#: What is text that a tokenizer knows as one id, whatever a file says.
_TEXT = frozenset("<|channel|> <|message|> <|start|> <|constrain|>".split())


class Roles(NamedTuple):
    """Which ids are special, and which of these end a generation."""

    special: frozenset[int]
    ends: frozenset[int]


def roles(
    ids: Mapping[str, int], special: Iterable[int], ends: Iterable[int] = ()
) -> Roles:
    """Find the special ids of a vocabulary.

    Parameters
    ----------
    ids : mapping of str to int
        The texts of the vocabulary.
    special : iterable of int
        Those that its file says are control, unknown or unused.
    ends : iterable of int
        Those that its file says end a text.
    """
    found = {text for text in _TURN_ENDS if text in ids}
    if not found & _TURN_MARKS:
        found |= {text for text in _TEXT_ENDS if text in ids}
    for line in _FILL_ENDS:
        found |= {text for text in line if text in ids}
    ordinary = {text for text in _TEXT if text in ids}
    if found & {"<|call|>", "<|calls|>"} and found & {"<|return|>", "<|flush|>"}:
        ordinary |= found & {"<|end|>"}  # there it ends a message within the answer
    if "<|tool_response>" in found:
        ordinary |= found & {"</s>"}
    found -= ordinary
    ending = frozenset([*(ids[text] for text in found), *ends])
    by_text = {ids[text] for text in _FILL_MARKS if text in ids}
    not_special = {ids[text] for text in ordinary} - ending
    return Roles((frozenset(special) | by_text | ending) - not_special, ending)
