"""How byte-level BPE cuts a text before it merges: llama.cpp's names for the rules.

Each rule is a list of steps in the form of a `tokenizer.json`. The names and the
expressions are those of llama.cpp and of the models' own files.
"""

from __future__ import annotations

from typing import Any

from eliza.errors import NotSupported

__all__ = ["Rule", "rule", "split"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTED = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BREAKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _modern(digits: str) -> str:
    """Return the expression of the newer models, which differ in their numbers."""
    return rf"{_CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_BREAKS}"


_THREE_DIGITS = ("llama-bpe", "llama3", "llama-v3", "pixtral")

#: What llama.cpp calls them, with the expressions that cut a text, one after the other.
_RULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais"), (_GPT2,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"),
        (r"\p{N}", _GPT2),
    ),
    **dict.fromkeys(_THREE_DIGITS, (_modern(r"\p{N}{1,3}"),)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), (_modern(r"\p{N}{1,3}"),)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (_modern(r"\p{N}"),)
    ),
}
#: Those that take a word of the vocabulary whole, before any merge.
_WHOLE_WORDS = frozenset(_THREE_DIGITS)


class Rule:
    """One way to cut a text.

    Attributes
    ----------
    steps : list
        For the `pre_tokenizer` of a `tokenizer.json`.
    whole_words : bool
        A word of the vocabulary is taken whole, before any merge. Such models also
        begin a text with their BOS id unless the file says otherwise.
    """

    def __init__(self, name: str) -> None:
        self.steps: list[dict[str, Any]] = [
            split(expression) for expression in _RULES[name]
        ]
        self.steps.append(
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            }
        )
        self.whole_words = name in _WHOLE_WORDS


def split(expression: str) -> dict[str, Any]:
    """Return the step that cuts out what an expression matches."""
    pattern = {"Regex": expression}
    return {
        "type": "Split",
        "pattern": pattern,
        "behavior": "Isolated",
        "invert": False,
    }


def rule(name: str) -> Rule:
    """Return the rule that llama.cpp knows by a name.

    Raises
    ------
    NotSupported
        It is not one of those that are known to come out the same.
    """
    if name not in _RULES:
        raise NotSupported(
            f"the pre-tokenizer {name!r} is not one that can be written as a "
            f"tokenizer.json; those are {', '.join(sorted(_RULES))}"
        )
    return Rule(name)
