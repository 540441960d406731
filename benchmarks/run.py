"""Every comparison that this project claims, measured on this machine; ``make bench``.

    python benchmarks/run.py                     measure what has no results yet, then write the pages
    python benchmarks/run.py --parts replay,idle these only
    python benchmarks/run.py --write             only write the pages anew
    python benchmarks/run.py --list              the parts and what they take

Stop it whenever you like: it goes on where it was. Results go to ``benchmarks/results``, a file a part, and
the tables and pictures of README.md and docs/ are made from these files and from nothing else.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.pages.report import found_in, write_pages
from suite.part import BENCHMARKS, ROOT, Part, Size
from suite.parts import PARTS
from suite.results import Results
from suite.running import run_parts


def main(words: Sequence[str] | None = None, parts: Sequence[Part] = PARTS, root: Path = ROOT) -> int:
    """Run from the command line.

    Args:
        words: Arguments; those of the process by default.
        parts: What there is to measure.
        root: The checkout whose pages are written.

    Returns:
        The exit status: 1 if a part failed.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", help="names, with commas between; all by default")
    parser.add_argument("--again", action="store_true", help="also what has results already")
    parser.add_argument("--write", action="store_true", help="measure nothing, write the pages")
    parser.add_argument("--list", action="store_true", help="show the parts")
    parser.add_argument(
        "--quick", action="store_true", help="try everything with tiny sizes; no page is written"
    )
    parser.add_argument("--results", type=Path, help="folder; benchmarks/results by default")
    arguments = parser.parse_args(words)
    size = Size(arguments.quick)
    folder = BENCHMARKS / ("results-quick" if arguments.quick else "results")
    results = Results(arguments.results or folder)
    names = {part.name: part for part in parts}
    wanted = arguments.parts.split(",") if arguments.parts else list(names)
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; choose from {', '.join(names)}")
    chosen = [names[name] for name in wanted]
    left = [part for part in chosen if arguments.again or not results.has(part, size)]
    if arguments.list:
        for part in chosen:
            print(
                f"{part.name:24} {part.minutes:4.1f} min  {'to be measured' if part in left else 'measured'}"
            )
        return 0
    failed = []
    if not arguments.write:
        minutes = sum(part.minutes for part in left)
        print(
            f"{len(left)} of {len(chosen)} parts to measure, about {minutes:.0f} min; let nothing else run",
            flush=True,
        )
        failed = run_parts(chosen, results, size, again=arguments.again)
    if not arguments.quick:
        from suite.pages.plots import draw

        found = found_in(results, list(names))
        written = [*write_pages(root, found), *draw(root / "docs" / "benchmarks", found)]
        print("\n".join(f"wrote {file.relative_to(root)}" for file in written))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # so that the part that is running is ended with us
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")
