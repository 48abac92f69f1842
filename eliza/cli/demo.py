"""`eliza demo`: a small real model picks from sets of choices, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eliza.cli.loading import add_model_options

if TYPE_CHECKING:
    import argparse


__all__ = ["add_parser"]


@dataclass(frozen=True)
class Scene:
    """Prompts that share their beginning, and what may be answered."""

    title: str
    choices: tuple[str, ...]
    shots: str
    frame: str
    inputs: tuple[str, ...]
    suffix: str = "\n"

    def prompt(self, text: str) -> str:
        """Return the whole prompt for one input."""
        return self.shots + self.frame.format(text)


SCENES = (
    Scene(
        "Sentiment",
        (" positive", " negative"),
        "Review: I love this phone. Sentiment: positive\n"
        "Review: It broke after a day. Sentiment: negative\n"
        "Review: Best meal I ever had. Sentiment: positive\n"
        "Review: Rude staff and cold food. Sentiment: negative\n",
        "Review: {} Sentiment:",
        (
            "What a wonderful film, I cried with joy.",
            "The battery died and nobody helped me.",
            "Works perfectly and looks great.",
            "Terrible noise, I want my money back.",
        ),
    ),
    Scene(
        "Topic",
        (" sports", " business", " technology", " music", " health"),
        "Text: The team won the final 3 to 1. Topic: sports\n"
        "Text: Shares fell after the bank's report. Topic: business\n"
        "Text: The new phone has a faster chip. Topic: technology\n"
        "Text: The singer's album tops the charts. Topic: music\n"
        "Text: Doctors found a cure for the disease. Topic: health\n",
        "Text: {} Topic:",
        (
            "The goalkeeper saved two penalties.",
            "A software update fixes the security bug.",
            "The company raised its prices again.",
            "The orchestra played Beethoven.",
            "Eating vegetables lowers the risk of illness.",
        ),
    ),
)


def add_parser(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "demo",
        help="watch a small model choose",
        description="Let a small model answer prompts, each with one of a set.",
    )
    add_model_options(parser, required=False)
    parser.set_defaults(run=run)
