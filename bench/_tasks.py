"""The tasks of `accuracy.py`: what may be answered, and what the model reads before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import _sets

DATA = Path(__file__).parent / "data" / "labelled.jsonl"
SUFFIX = "\n"


@dataclass(frozen=True)
class Task:
    """One way of asking: worked examples, then the input in the same frame.

    `neutral` stands for the input where the model's leaning without one is measured.
    """

    name: str
    labels: tuple[str, ...]
    frame: str
    shots: tuple[tuple[str, str], ...]
    neutral: str = "N/A"

    @property
    def choices(self) -> list[str]:
        return [f" {label}" for label in self.labels]

    def prompt(self, text: str) -> str:
        """Return the whole prompt for one input; all of a task begin alike."""
        shown = (f"{self.frame.format(x)} {label}{SUFFIX}" for x, label in self.shots)
        return "".join(shown) + self.frame.format(text)


@dataclass(frozen=True)
class Row:
    """An input with its right label."""

    task: str
    text: str
    label: str


#: What somebody says who wants it: description and worked example in one.
_DESCRIBED = {
    "REPLY": "say something nice back to him",
    "IGNORE": "take no notice of that message",
    "NONE": "nothing needs to be done",
    "SEND_MESSAGE": "send Anna a chat message",
    "SEND_EMAIL": "send Anna an email",
    "SEND_TOKEN": "pay Anna one token",
    "SEARCH_WEB": "look that up on the internet",
    "SEARCH_FILES": "which of my files is about the boat?",
    "SEARCH_MEMORY": "what did we say about the boat last time?",
    "CREATE_TASK": "put paint the fence on my to-do list",
    "CREATE_EVENT": "make an appointment for tomorrow at noon",
    "CREATE_NOTE": "write down what she said",
    "DELETE_TASK": "take the fence off my to-do list",
    "DELETE_EVENT": "cancel the appointment tomorrow",
    "DELETE_NOTE": "throw away what I wrote down",
    "UPDATE_TASK": "the fence is painted, tick it off",
    "UPDATE_SETTINGS": "use larger letters in the app",
    "UPDATE_ROLE": "allow Anna to invite members",
    "FOLLOW_ROOM": "subscribe to the film room",
    "UNFOLLOW_ROOM": "leave the film room",
    "MUTE_ROOM": "no more sounds from the film room",
    "UNMUTE_ROOM": "let me hear the film room again",
    "GENERATE_IMAGE": "paint a boat on the sea",
    "TRANSCRIBE_MEDIA": "write out what is said in the recording",
    "SUMMARIZE_CHAT": "sum up what was said here",
    "CHOOSE_OPTION": "tea or coffee, decide for me",
    "GET_WEATHER": "will there be sun at the weekend?",
    "GET_PRICE": "what does a barrel of oil cost?",
    "SWAP_TOKEN": "trade my tokens for other ones",
    "TRANSFER_TOKEN": "move tokens from one of my wallets to the other",
}

TASKS = (
    Task(
        "sentiment",
        ("positive", "negative"),
        "Review: {} Sentiment:",
        (
            ("The soup was hot and tasty.", "positive"),
            ("My order never came.", "negative"),
            ("The screen cracked on the second day.", "negative"),
            ("A lovely film, I want to see it again.", "positive"),
        ),
    ),
    Task(
        "topic",
        ("sports", "travel", "science", "food and cooking", "personal finance"),
        "Text: {} Topic:",
        (
            ("The runner came in last.", "sports"),
            ("Chop the parsley and boil the potatoes.", "food and cooking"),
            ("The hotel lies close to the station.", "travel"),
            ("Light takes eight minutes from the sun to the earth.", "science"),
            ("Spend less than you earn.", "personal finance"),
            ("The museum in Athens opens at nine.", "travel"),
            ("Our bank raised the interest on savings.", "personal finance"),
            ("Ice is lighter than water.", "science"),
            ("The match ended in a draw.", "sports"),
            ("Fry the mushrooms with a little garlic.", "food and cooking"),
        ),
    ),
    Task(
        "yes/no",
        ("yes", "no"),
        "Text: {} Answer:",
        (
            ("The door is green. Question: Is the door green?", "yes"),
            ("Anna has no car. Question: Does Anna have a car?", "no"),
            ("The cup is empty. Question: Is there tea in the cup?", "no"),
            ("Max eats an apple a day. Question: Does Max eat fruit?", "yes"),
        ),
        "N/A Question: N/A",
    ),
    Task(
        "action",
        tuple(_sets.SHORT),
        "{} ->",
        # Each 7th in turn, so that actions which are alike do not stand together.
        tuple(
            (_DESCRIBED[name], name)
            for name in (_sets.SHORT[7 * i % 30] for i in range(30))
        ),
    ),
)


def load() -> list[Row]:
    """Return the labelled rows."""
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return [Row(**json.loads(line)) for line in lines]
