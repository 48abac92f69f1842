"""The charts of the README, drawn from the rows that the benchmarks print."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

OURS, OTHERS, INK, FAINT = "#1f6feb", "#aab4bf", "#24292f", "#6b7681"
#: 9 inches at 200 dots are shown 900 pixels wide, sharp on screens that have more.
WIDTH, DPI = 9.0, 200
CHOICES = 1_000

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#d0d7de",
    "xtick.color": FAINT,
    "ytick.color": INK,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}

Rows = list[dict[str, Any]]


def seconds(value: float) -> str:
    """Write a time with two digits in the unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if value >= 0.995 * size or unit == "ns":
            number = value / size
            if number >= 99.5:
                return f"{float(f'{number:.2g}'):,.0f} {unit}"
            return f"{number:.2g} {unit}"
    raise AssertionError


def times(ratio: float) -> str:
    if ratio < 9.95:
        return f"{ratio:.2g}×"
    return f"{float(f'{ratio:.2g}'):,.0f}×"


def decades(axis: Any, low: float, high: float) -> None:
    """Mark the powers of ten, in words."""
    powers = [10.0**k for k in range(-9, 3)]
    axis.set_major_locator(FixedLocator([p for p in powers if low <= p <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))


def plain(ax: Axes, grid: str) -> None:
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.grid(axis=grid, color="#e8ecf0", linewidth=1)
    ax.set_axisbelow(True)
    ax.tick_params(length=0)


def save(figure: Figure, path: str) -> None:
    figure.savefig(path, dpi=DPI, facecolor="white", pil_kwargs={"optimize": True})
    plt.close(figure)


def bars(ax: Axes, found: list[tuple[str, float]], title: str) -> None:
    """Draw a bar for each engine, with its time, and how many times as long as ours.

    The first of `found` is ours, and so is each whose name begins with eliza.
    """
    ours = found[0][1]
    values = [value for _, value in found]
    low = 10.0 ** math.floor(math.log10(min(values) / 1.5))
    high = max(values)
    room = (high / low) ** 0.33  # for the figures behind the longest bar
    for at, (name, value) in enumerate(found):
        mine = name.startswith("eliza")
        ax.barh(at, value - low, 0.64, low, color=OURS if mine else OTHERS)
        weight = "bold" if mine else "normal"
        behind = {"textcoords": "offset points", "va": "center"}
        label = ax.annotate(
            seconds(value), (value, at), (7, 0), weight=weight, **behind
        )
        if at:
            ax.annotate(
                times(value / ours),
                (1, 0.5),
                (9, 0),
                xycoords=label,
                color=FAINT,
                **behind,
            )
    ax.set_xscale("log")
    ax.set_xlim(low, high * room)
    ax.set_yticks(range(len(found)), [name for name, _ in found])
    for tick in ax.get_yticklabels():
        if tick.get_text().startswith("eliza"):
            tick.set(weight="bold", color=OURS)
    ax.set_ylim(len(found) - 0.4, -0.6)
    decades(ax.xaxis, low, high * 1.5)
    plain(ax, "x")
    ax.annotate(
        title,
        (0.012, 1),
        (0, 9),
        xycoords=("figure fraction", "axes fraction"),
        textcoords="offset points",
        fontsize=13,
        weight="bold",
    )


def draw_kernels(rows: Rows, path: str) -> None:
    """Draw what a step and what building cost, for the largest vocabulary."""
    n_vocab = max(int(row["n_vocab"]) for row in rows)
    rows = [row for row in rows if int(row["n_vocab"]) == n_vocab]
    sizes = {int(row["choices"]) for row in rows}
    choices = CHOICES if CHOICES in sizes else max(sizes)
    rows = [row for row in rows if int(row["choices"]) == choices]

    def best(engine: str, *measures: str) -> float | None:
        unit = {"us": 1e-6, "ms": 1e-3}
        values = [
            float(row["best"]) * unit[row["unit"]]
            for row in rows
            if row["engine"] == engine and row["measure"] in measures
        ]
        return min(values, default=None)

    engines = dict.fromkeys(row["engine"] for row in rows)
    steps = [(e, t) for e in engines if (t := best(e, "pick", "by hand")) is not None]
    builds = [(e, t) for e in engines if (t := best(e, "build")) is not None]
    steps[1:] = sorted(steps[1:], key=lambda pair: pair[1])
    builds[1:] = sorted(builds[1:], key=lambda pair: pair[1])
    builds[0] = ("eliza, from text", builds[0][1])
    builds.insert(1, ("eliza, from token ids", best("eliza", "build from ids") or 0.0))
    with plt.rc_context(STYLE):
        figure, (top, bottom) = plt.subplots(
            2, 1, figsize=(WIDTH, 6.4), height_ratios=(len(steps), len(builds))
        )
        bars(top, steps, f"Pick the next token, {choices:,} choices")
        bars(bottom, builds, f"Get {choices:,} choices ready")
        figure.text(
            0.012,
            0.018,
            "Shorter is better; each line is ten times the one before it. ×: times as "
            f"long as eliza. One core, {rows[0]['vocabulary']}'s {n_vocab:,}\ntokens, "
            "each engine in its fastest way. All but eliza and NumPy allow any "
            "spelling of a choice, and read text as it is.",
            color=FAINT,
            fontsize=9.5,
            linespacing=1.5,
        )
        figure.tight_layout(rect=(0, 0.085, 1, 1), h_pad=2)
        save(figure, path)


def draw_build(columns: list[str], rows: list[list[Any]], path: str) -> None:
    """Draw the time and the memory of a trie by the number of its leaves."""
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    counts = [int(row["leaves"]) for row in found]
    times_ = [float(row["shuffled ms"]) / 1e3 for row in found]
    sizes = [float(row["bytes/leaf"]) for row in found]
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(WIDTH, 3.6), width_ratios=(3, 2)
        )
        left.loglog(counts, times_, color=OURS, linewidth=2.5, marker="o", markersize=7)
        for count, value in zip(counts, times_, strict=True):
            left.annotate(
                seconds(value),
                (count, value),
                (9, -13),
                textcoords="offset points",
                weight="bold",
            )
        low, high = min(times_) / 6, max(times_) * 3
        left.set_xlim(min(counts) / 2.5, max(counts) * 12)
        left.set_ylim(low, high)
        left.set_xticks(counts, [brief(count) for count in counts])
        left.xaxis.set_minor_locator(NullLocator())
        left.set_xlabel("number of choices", color=FAINT)
        decades(left.yaxis, low, high)
        plain(left, "y")
        left.set_title(
            "Build from token ids", loc="left", fontsize=13, weight="bold", pad=9
        )
        places = range(len(counts))
        right.bar(places, sizes, 0.62, color=OURS)
        for at, value in zip(places, sizes, strict=True):
            right.annotate(
                f"{value:.0f}",
                (at, value),
                (0, 4),
                textcoords="offset points",
                ha="center",
                weight="bold",
            )
        right.set_xticks(places, [brief(count) for count in counts])
        right.set_ylim(0, max(sizes) * 1.15)
        right.set_yticks([])
        right.set_xlabel("number of choices", color=FAINT)
        plain(right, "y")
        right.set_title(
            "Bytes for each choice",
            loc="left",
            fontsize=13,
            weight="bold",
            pad=9,
        )
        figure.text(
            0.012,
            0.02,
            "Choices of 3 to 16 token ids in random order, without names; one core.",
            color=FAINT,
            fontsize=9.5,
        )
        figure.tight_layout(rect=(0, 0.06, 1, 1), w_pad=3)
        save(figure, path)


def brief(count: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.0f}{letter}"
    return str(count)
