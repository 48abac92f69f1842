"""`eliza choose`: one prompt, one answer."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from eliza.cli import EXIT_ABSTAINED, EXIT_OK
from eliza.cli.loading import add_model_options, load_model
from eliza.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse

    from eliza.choosing.answer import Answer, Ranking

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
        choices=("exact", "greedy", "sample"),
        default="exact",
        help="the best whole choice (default), the best token at each step, or a draw",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="for --method sample: draw repeatably"
    )
    parser.add_argument(
        "--normalize",
        choices=("none", "tokens", "bytes", "prior"),
        default="none",
        help="divide a choice's log-likelihood by its length, or subtract what it has "
        "after --prior-prompt",
    )
    parser.add_argument(
        "--prior-prompt", metavar="TEXT", help="the prompt without its input"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="P",
        help="abstain (exit code 1) below this probability",
    )
    parser.add_argument(
        "--default", metavar="TEXT", help="what to print when abstaining"
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
        "--explain",
        action="store_true",
        help="print how the answer came about: what was decided, what was forced",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the ranking into a picture file"
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
    if arguments.seed is not None and arguments.method != "sample":
        raise InvalidArgument(
            f"--seed is for --method sample; this is --method {arguments.method}"
        )
    with load_model(arguments.model, arguments) as model:
        answer = model.choose(
            arguments.prompt,
            choices,
            suffix=arguments.suffix,
            method=arguments.method,
            ranking=arguments.score if arguments.ranking else None,
            normalize=arguments.normalize,
            prior_prompt=arguments.prior_prompt,
            threshold=arguments.threshold,
            default=arguments.default,
            rng=arguments.seed,
        )
    if arguments.plot is not None:
        answer.plot(arguments.plot)
    if arguments.json:
        print(_as_json(answer))
    elif arguments.explain:
        print(answer.explain(shutil.get_terminal_size().columns))
    elif answer.ranking is not None:
        print(_as_rows(answer.ranking))
    elif answer.value is not None:
        print(answer.value)
    return EXIT_ABSTAINED if answer.abstained else EXIT_OK


def _read_choices(name: str) -> list[str]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name} is not UTF-8 text: {error}") from None
    # Lines end at a line feed alone: other characters may belong to a choice.
    lines = text.removeprefix("\ufeff").split("\n")
    return [line for line in (line.removesuffix("\r") for line in lines) if line]


def _as_rows(ranking: Ranking) -> str:
    return "\n".join(f"{r.probability:8.4f}  {r.value}" for r in ranking)


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
            "abstained": answer.abstained,
            "ranking": None if ranking is None else [r._asdict() for r in ranking],
            "stats": answer.stats._asdict(),
        }
    ).decode()
