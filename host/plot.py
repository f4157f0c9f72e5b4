# SPDX-License-Identifier: BSD-2-Clause
"""Draws a picture of panels of lines or bars with gnuplot: axes with their units, a legend, the host it came from."""

import os
import subprocess
from dataclasses import dataclass, field

import shell
from errors import EXIT_PEER, EXIT_USAGE, SluiceError

TERMINALS = {".svg": "svg", ".png": "pngcairo"}
WIDTH_PX, PANEL_HEIGHT_PX, MARGIN_PX = 960, 360, 70
TIMEOUT_S = 30
NOT_MEASURED = "not measured"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by the colour-blind too


@dataclass(frozen=True)
class Series:
    """label: for the legend; points: (x, y) pairs, x one of the panel's categories or, with bars, a group's name.

    A group of bars that others have and this one lacks is marked as not measured.
    """

    label: str
    points: tuple
    low_high: tuple = ()  # with bars: (low, high) of each point, drawn as a whisker


@dataclass(frozen=True)
class Panel:
    title: str
    x: str
    y: str
    series: tuple
    bars: bool = False
    log_y: bool = False
    categories: tuple = ()  # of x, evenly spaced; every x of a line is one of them


@dataclass(frozen=True)
class Picture:
    title: str
    panels: tuple = field(default_factory=tuple)


def check(path):
    """Before anything is measured: whether a picture of that name can be drawn here."""
    if os.path.splitext(path)[1] not in TERMINALS:
        allowed = ", ".join(TERMINALS)
        raise SluiceError(EXIT_USAGE, f"argument --plot: {path!r} is not allowed: a file name that ends in {allowed}")
    try:
        subprocess.run(["gnuplot", "--version"], capture_output=True, check=False)
    except FileNotFoundError:
        raise SluiceError(EXIT_PEER, "gnuplot is not installed: apt install gnuplot-nox") from None


def draw(picture, path, suffix, host):
    """Write the picture to path. suffix: .svg or .png."""
    text = script(picture, path, TERMINALS[suffix], host)
    shell.show(["gnuplot"])
    done = subprocess.run(
        ["gnuplot"], input=text, capture_output=True, text=True, timeout=TIMEOUT_S, env=shell.environment(), check=False
    )
    if done.returncode or done.stderr.strip():
        words = (done.stderr.strip() or f"status {done.returncode}").splitlines()
        raise SluiceError(EXIT_PEER, f"gnuplot: {words[-1]}")


def quote(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', "'").replace("\n", "\\n") + '"'


def script(picture, path, terminal, host):
    """The program for gnuplot."""
    height = PANEL_HEIGHT_PX * len(picture.panels) + MARGIN_PX
    lines = [
        f"set terminal {terminal} size {WIDTH_PX},{height} enhanced font 'sans,11' background 'white'",
        f"set output {quote(path)}",
        "set termoption noenhanced",
        f"set multiplot layout {len(picture.panels)},1 title {quote(picture.title + chr(10) + host)}",
        "set grid ytics linecolor '#dddddd'",
        "set key outside right top vertical Left reverse",
        "set border 3",
        "set tics nomirror",
    ]
    for number, panel in enumerate(picture.panels):
        lines += _panel(number, panel)
    return "\n".join([*lines, "unset multiplot", "unset output", ""])


def _panel(number, panel):
    lines = [f"set title {quote(panel.title)}", f"set xlabel {quote(panel.x)}", f"set ylabel {quote(panel.y)}"]
    lines += ["unset logscale", "set autoscale", "set xtics autofreq norotate", "set bmargin", "unset label"]
    lines += ["set logscale y" if panel.log_y else "set yrange [0:*]"]
    return lines + (_bars if panel.bars else _lines)(number, panel)


def _block(name, rows):
    return [f"${name} << EOD", *(" ".join(map(str, row)) for row in rows), "EOD"]


def _lines(number, panel):
    lines, plots = [], []
    ticks = ", ".join(f"'{name}' {i}" for i, name in enumerate(panel.categories))
    lines += [f"set xtics rotate by -45 ({ticks})", f"set xrange [-0.5:{len(panel.categories) - 0.5}]"]
    for i, series in enumerate(panel.series):
        lines += _block(f"d{number}_{i}", [(panel.categories.index(x), y) for x, y in series.points])
        colour = COLOURS[i % len(COLOURS)]
        plots.append(
            f"$d{number}_{i} using 1:2 with linespoints linewidth 2 pointtype {5 + 2 * i} linecolor '{colour}' "
            f"title {quote(series.label)}"
        )
    return [*lines, "plot " + ", ".join(plots)]


def _bars(number, panel):
    groups = list(dict.fromkeys(x for series in panel.series for x, _ in series.points))
    width = 0.8 / len(panel.series)
    lines, plots = ["set style fill solid 0.85 noborder", f"set boxwidth {width:.3f}"], []
    lines.append("set xtics (" + ", ".join(f"{quote(g)} {i}" for i, g in enumerate(groups)) + ")")
    deep = max(g.count("\n") for g in groups)
    lines += [f"set xlabel offset 0,{-deep}", f"set bmargin {4 + deep}"]
    lines.append(f"set xrange [-0.6:{len(groups) - 0.4:.1f}]")
    for i, series in enumerate(panel.series):
        offset = (i - (len(panel.series) - 1) / 2) * width
        colour = COLOURS[i % len(COLOURS)]
        rows = []
        for j, (x, y) in enumerate(series.points):
            low, high = series.low_high[j] if series.low_high else (y, y)
            rows.append((f"{groups.index(x) + offset:.3f}", y, low, high))
        # A bar that is not there looks like one of 0.
        measured = {x for x, _ in series.points}
        lines += [
            f"set label {quote(NOT_MEASURED)} at {j + offset:.3f}, graph 0.03 rotate by 90 left font 'sans,9' textcolor '{colour}'"
            for j, group in enumerate(groups) if group not in measured
        ]  # fmt: skip
        lines += _block(f"d{number}_{i}", rows)
        plots.append(f"$d{number}_{i} using 1:2 with boxes linecolor '{colour}' title {quote(series.label)}")
        if series.low_high:
            plots.append(f"$d{number}_{i} using 1:2:3:4 with yerrorbars pointtype 7 pointsize 0.1 linecolor 'black' notitle")
    return [*lines, "plot " + ", ".join(plots)]
