"""Records a program on a pseudo-terminal and draws one of its screens as an SVG.

usage: terminal_svg.py OUT.svg SECONDS PROGRAM [ARGUMENT...]

Stops the program SECONDS after its start, and draws the last screen that showed the bars of a step.
"""

import fcntl
import html
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import pyte

COLUMNS, ROWS = 100, 14
CELL, LINE, EDGE = 8.4, 20, 14
COLORS = {"default": "#d8dee9", "black": "#4c566a", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
          "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#ffffff"}


def rows_of(screen):
    """The screen's rows as lists of (column, text, color, bold), without empty rows at the end."""
    rows = []
    for y in range(screen.lines):
        runs = []
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            key = (cell.fg, cell.bold)
            if runs and runs[-1][2:] == key:
                runs[-1] = (runs[-1][0], runs[-1][1] + cell.data, *key)
            else:
                runs.append((x, cell.data, *key))
        rows.append([run for run in runs if run[1].strip()])
    while rows and not rows[-1]:
        rows.pop()
    return rows


def record(words, seconds):
    """The rows of the last screen with a bar of sampling and one of rewards."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", LC_ALL="C.UTF-8", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.environ.pop("NO_COLOR", None)
        os.environ.pop("CI", None)
        os.execvp(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    end, best, killed = time.monotonic() + seconds, [], False
    while True:
        if not killed and time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            killed = True
        if not select.select([terminal], [], [], 0.05)[0]:
            continue
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not data:
            break
        stream.feed(data)
        text = "\n".join(screen.display)
        if "sampling" in text and "rewards" in text and "█" in text:
            best = rows_of(screen)
    os.waitpid(child, 0)
    if not best:
        sys.exit("terminal_svg.py: the program showed no bars. It printed:\n" + "\n".join(screen.display))
    return best


def svg(rows):
    width, height = round(COLUMNS * CELL + 2 * EDGE), len(rows) * LINE + 2 * EDGE
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
             f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
             '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14">']
    for y, row in enumerate(rows):
        for x, text, color, bold in row:
            text = text.rstrip().replace(" ", "\u00a0")  # else a browser draws one space of several
            fill = COLORS.get(color, "#" + color if len(color) == 6 else COLORS["default"])
            weight = ' font-weight="bold"' if bold else ""
            parts.append(f'<text x="{EDGE + x * CELL:.1f}" y="{EDGE + (y + 0.75) * LINE:.1f}" fill="{fill}"{weight} '
                         f'textLength="{len(text) * CELL:.1f}" lengthAdjust="spacingAndGlyphs">{html.escape(text)}</text>')
    return "\n".join([*parts, "</g>", "</svg>", ""])


def main():
    out, seconds, words = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    with open(out, "w", encoding="utf-8") as file:
        file.write(svg(record(words, seconds)))


if __name__ == "__main__":
    main()
