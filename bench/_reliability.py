"""The reliability picture of `accuracy.py`: is "80 % sure" right 8 times of 10?"""

from __future__ import annotations

import math
from typing import Any

WIDTH, HEIGHT, DPI = 900, 710, 100
INK, GREY, BLUE = "#222222", "#8a8a8a", "#2f6fb0"
TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)
TITLES = {
    "greedy": "greedy (masked)",
    "none": "exact, none (default)",
    "tokens": "exact, per token",
    "bytes": "exact, per byte",
    "prior": "exact, minus prior",
}
READING = (
    "How to read it\n\n"
    "The answers are put into ten groups\n"
    "by how sure the model says it is. A\n"
    "dot shows how often those of a group\n"
    "were right; the number, how many\n"
    "they are.\n\n"
    "On the dashed line the model is right\n"
    "as often as it says. Below it, it says\n"
    "too much; above it, too little.\n\n"
    "Gap: the mean distance from the line,\n"
    "each answer counted once (ECE)."
)


def area(group: dict[str, float], found: dict[str, Any]) -> float:
    """Return the size of a dot, in square points."""
    return 18 + 900 * group["answers"] / found["rows"]


def draw(out: dict[str, Any], path: str) -> None:
    """Draw a panel per policy into a picture file (needs matplotlib)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 3)
    panels = list(grid.flat)
    every = {f["policy"]: f for f in out["figures"] if f["task"] == "all"}
    for i, (policy, title) in enumerate(TITLES.items()):
        axes, found = panels[i], every[policy]
        axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, zorder=1)
        groups = out["bins"][policy]
        axes.vlines(
            [b["sure"] for b in groups],
            [b["sure"] for b in groups],
            [b["right"] for b in groups],
            color=BLUE,
            linewidth=1,
            alpha=0.5,
        )
        axes.scatter(
            [b["sure"] for b in groups],
            [b["right"] for b in groups],
            [area(b, found) for b in groups],
            color=BLUE,
            alpha=0.75,
            linewidth=0,
            zorder=2,
            clip_on=False,
        )
        for b in groups:
            x, y = b["sure"], b["right"]
            radius = math.sqrt(area(b, found) / math.pi)
            if y < 0.12:  # the axis is below, the line above
                away = (radius + 6, 6)
            else:
                away = (0, radius + 5 if y > x and x < 0.9 else -radius - 6)
            axes.annotate(
                f"{b['answers']:.0f}",
                (x, y),
                away,
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=8,
                color=INK,
                zorder=3,
            )
        axes.set_title(title, fontsize=11, color=INK, loc="left", weight="bold")
        axes.text(
            0.98,
            0.03,
            f"right {found['right']:.1%}\ngap {found['ece']:.3f}",
            transform=axes.transAxes,
            ha="right",
            va="bottom",
            fontsize=9,
            color=INK,
        )
        axes.set(xlim=(0, 1.08), ylim=(0, 1.08), aspect="equal")
        axes.set(xticks=TICKS, yticks=TICKS)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.tick_params(labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        if i % 3 == 0:
            axes.set_ylabel("how often it was right", fontsize=9, color=INK)
        axes.set_xlabel("how sure it said it was", fontsize=9, color=INK)
    panels[-1].axis("off")
    panels[-1].text(0, 1, READING, va="top", fontsize=8.5, color=INK, linespacing=1.35)
    figure.suptitle(
        "How far can the probabilities be trusted?",
        x=0.02,
        ha="left",
        fontsize=14,
        color=INK,
    )
    rows = every["none"]["rows"]
    figure.text(
        0.02,
        0.925,
        f"{rows} labelled questions of four tasks, {out['model']}",
        fontsize=9,
        color=GREY,
    )
    figure.subplots_adjust(0.07, 0.075, 0.985, 0.85, wspace=0.22, hspace=0.38)
    figure.savefig(path, dpi=DPI)
