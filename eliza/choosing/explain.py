"""An answer in words and bars: for a terminal, a notebook, or a picture file."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from eliza.errors import NotSupported

if TYPE_CHECKING:
    from pathlib import Path

    from eliza.choosing.answer import Answer, Ranked
    from eliza.choosing.trail import Link

__all__ = ["as_html", "as_text", "draw"]

#: How many choices of a ranking are shown.
SHOWN = 20


def as_text(answer: Answer, width: int) -> str:
    """Return the explanation for a terminal of so many columns."""
    lines = [_headline(answer)]
    if answer.abstained:
        lines.append(f"below the threshold: answered {answer.value!r}")
    lines.append("")
    for link in answer.links:
        head = f"  {'decided' if link.decided else 'forced ':8}"
        text = _shown(link)
        if link.decided and link.probability is not None:
            share = f"{link.probability:6.1%}"
            lines.append(f"{head} {text:20} {share}   {_others(link)}")
        else:
            lines.append(f"{head} {text}")
    if answer.ranking is not None:
        lines += ["", f"  {answer.ranking.kind} ranking"]
        lines += _bars(list(answer.ranking), width)
    stats = answer.stats
    passes = "1 pass" if stats.forward_passes == 1 else f"{stats.forward_passes} passes"
    lines += [
        "",
        f"  {passes} over {stats.positions} positions in {stats.seconds * 1000:.0f} ms",
        f"  prompt of {stats.prompt_tokens} tokens, {stats.reused_tokens} reused",
    ]
    return "\n".join(_clip(line, width) for line in lines)


def _headline(answer: Answer) -> str:
    words = [f"{answer.choice!r}"]
    if answer.probability is not None:
        words.append(f"probability {answer.probability:.1%}")
    elif answer.probability_bounds is not None:
        low, high = answer.probability_bounds
        same = high - low < 0.0005
        words.append(
            f"probability {low:.1%}" if same else f"probability {low:.1%} to {high:.1%}"
        )
    words.append(f"log-likelihood {answer.logprob:.2f}")
    return ", ".join(words)


def _shown(link: Link) -> str:
    return repr(link.text) if link.ids else "(end)"


def _others(link: Link) -> str:
    shown = ", ".join(f"{text!r} {p:.1%}" for text, p in link.others)
    left = link.n_others - len(link.others)
    return f"against {shown}" + (f" and {left} more" if left else "")


def _clip(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def _bars(ranking: list[Ranked], width: int) -> list[str]:
    shown = ranking[:SHOWN]
    names = [_clip(str(ranked.value), 30) for ranked in shown]
    column = max(map(len, names))
    room = max(10, width - column - 14)
    top = max(ranked.probability for ranked in shown) or 1.0
    lines = [
        f"  {name:{column}} {ranked.probability:6.1%} "
        + "█" * round(room * ranked.probability / top)
        for name, ranked in zip(names, shown, strict=True)
    ]
    left = len(ranking) - len(shown)
    if left:
        share = sum(ranked.probability for ranked in ranking[SHOWN:])
        lines.append(f"  {'…':{column}} {share:6.1%} in {left} more")
    return [line.rstrip() for line in lines]


def as_html(answer: Answer) -> str:
    """Return the explanation for a notebook."""
    way = "".join(
        f"<span title='{html.escape(_title(link), quote=True)}' style='"
        f"{'border-bottom:2px solid #3465a4' if link.decided else 'color:#777'}'>"
        f"{html.escape(link.text) if link.ids else '⏹'}</span>"
        for link in answer.links
    )
    rows = ""
    if answer.ranking is not None:
        rows = "".join(
            f"<tr><td>{html.escape(str(ranked.value))}</td>"
            f"<td style='text-align:right'>{ranked.probability:.1%}</td>"
            "<td style='width:240px;text-align:left'><div style='background:#3465a4;"
            f"height:0.8em;width:{ranked.probability * 100:.1f}%'></div></td></tr>"
            for ranked in list(answer.ranking)[:SHOWN]
        )
        rows = f"<table>{rows}</table>"
    return (
        f"<div><div>{html.escape(_headline(answer))}</div>"
        f"<div style='font-family:monospace;white-space:pre-wrap'>{way}</div>{rows}"
        "</div>"
    )


def _title(link: Link) -> str:
    if not link.decided or link.probability is None:
        return "forced: nothing else was allowed"
    return f"{link.probability:.1%} {_others(link)}"


def draw(answer: Answer, path: str | Path) -> None:
    """Draw the ranking, or else what is known of the answer, into a picture file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NotSupported(
            "a plot needs matplotlib: pip install 'eliza[plot]'"
        ) from None
    if answer.ranking is None:
        low, high = answer.probability_bounds or (answer.probability or 0.0, 1.0)
        names, widths, lefts = [str(answer.choice)], [max(high - low, 0.004)], [low]
        title = "what the search knows of its probability"
    else:
        shown = list(answer.ranking)[:SHOWN][::-1]
        names = [str(ranked.value) for ranked in shown]
        widths = [ranked.probability for ranked in shown]
        lefts = [0.0] * len(shown)
        title = f"{answer.ranking.kind} ranking"
    figure = Figure(figsize=(7, 1.2 + 0.28 * len(names)), layout="constrained")
    axes = figure.subplots()
    colors = ["#3465a4" if name == str(answer.choice) else "#a8bcd8" for name in names]
    axes.barh(names, widths, left=lefts, color=colors)
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability among the choices")
    axes.set_title(title, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)
