"""`eliza choose`: one prompt, one answer."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from eliza.cli.loading import add_model_options, load_model
from eliza.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse

    from eliza.choosing.answer import Answer

__all__ = ["add_parser"]


def add_parser(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "choose",
        help="answer a prompt with one of the choices",
        description="Print the choice that the model gives as its answer.",
    )
    add_model_options(parser, required=True)
    parser.add_argument(
        "--choice",
        action="append",
        default=[],
        metavar="TEXT",
        help="something the model may answer; give it once for each",
    )
    parser.add_argument(
        "--choices", metavar="FILE", help="more choices, one to a line; - for stdin"
    )
    parser.add_argument(
        "--suffix", default=None, metavar="TEXT", help="what would follow the answer"
    )
    parser.add_argument(
        "--method",
        choices=("exact", "greedy"),
        default="exact",
        help="the best whole choice (default), or the best token at each step",
    )
    parser.add_argument(
        "--ranking",
        action="store_true",
        help="print every choice with its probability, the best first",
    )
    parser.add_argument(
        "--score",
        choices=("whole", "masked"),
        default="whole",
        help="what the ranking goes by: the model's likelihood of the whole choice "
        "(default), or its distribution over the allowed tokens",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the whole answer as JSON"
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text before the answer")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry the verb out; return the exit code."""
    choices = list(arguments.choice)
    if arguments.choices is not None:
        choices += _read_choices(arguments.choices)
    if not choices:
        raise InvalidArgument("there are no choices; give --choice TEXT or --choices")
    with load_model(arguments.model, arguments) as model:
        answer = model.choose(
            arguments.prompt,
            choices,
            suffix=arguments.suffix,
            method=arguments.method,
            ranking=arguments.score if arguments.ranking else None,
        )
    print(_as_json(answer) if arguments.json else _as_text(answer))
    return 0


def _read_choices(name: str) -> list[str]:
    try:
        if name == "-":
            text = sys.stdin.read()
        else:
            text = Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name} is not UTF-8 text: {error}") from None
    return [line for line in text.splitlines() if line]


def _as_text(answer: Answer) -> str:
    if answer.ranking is None:
        return str(answer.value)
    return "\n".join(f"{r.probability:8.4f}  {r.value}" for r in answer.ranking)


def _as_json(answer: Answer) -> str:
    """Return the answer as JSON; an infinite margin (no other choice) is null."""
    ranking = answer.ranking
    return msgspec.json.encode(
        {
            "value": answer.value,
            "index": answer.index,
            "logprob": answer.logprob,
            "probability": answer.probability,
            "probability_bounds": answer.probability_bounds,
            "margin": answer.margin,
            "ranking": None if ranking is None else [r._asdict() for r in ranking],
            "stats": asdict(answer.stats),
        }
    ).decode()
