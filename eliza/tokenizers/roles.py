"""Which ids are special, and which end a generation: by their texts.

A tokenizer's file does not say what ends a generation, and its attributes are wrong
often enough that llama.cpp goes by the texts of tokens. The same rules are kept here,
so that a vocabulary has the same special ids on every runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Roles", "roles"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: What ends a turn or a text.
_TURN_ENDS = _words(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> "
    "<end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] "
    "<|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>"
)
#: Ends a text, where nothing else ends a turn.
_TEXT_ENDS = _words("<\uff5cend\u2581of\u2581sentence\uff5c>")
_TURN_MARKS = _words("<|eot_id|> <|im_end|> <|end|> <end_of_turn>")
#: What ends a piece of code to be filled in.
_FILL_ENDS = _words(
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> <|fim_repo|> <|repo_name|> <fim-repo> "
    "<REPO> <reponame> <|file_sep|>"
)
#: What surrounds code to be filled in.
_FILL_MARKS = _words(
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim\u2581begin\uff5c> <PRE> "
    "\u2581<PRE> <|code_prefix|> <|fim_suffix|> <fim-suffix> <fim_suffix> "
    "<\uff5cfim\u2581hole\uff5c> <SUF> \u2581<SUF> <|code_suffix|> <|fim_middle|> "
    "<fim-middle> <fim_middle> <\uff5cfim\u2581end\uff5c> <MID> \u2581<MID> "
    "<|code_middle|>"
)
#: What is text that a tokenizer knows as one id, whatever a file says.
_TEXT = _words("<|channel|> <|message|> <|start|> <|constrain|>")


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
    found = {text for text in _TURN_ENDS | _FILL_ENDS if text in ids}
    if not found & _TURN_MARKS:
        found |= {text for text in _TEXT_ENDS if text in ids}
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
