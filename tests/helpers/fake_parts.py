"""Parts for the benchmark's runner: they take no time and do what a test needs."""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial
from pathlib import Path

from suite.part import Json, LeftOut, Part, Size


def measure(size: Size, *, log: Path, name: str, do: str) -> Json:
    with log.open("a") as file:
        file.write(f"{name}\n")
    match do:
        case "fail":
            raise ValueError("nothing adds up")
        case "die":
            os._exit(9)
        case "leave out":
            raise LeftOut("no peer is installed")
        case "hang":
            sleeper = subprocess.Popen(["sleep", "600"])
            log.with_suffix(".pid").write_text(str(sleeper.pid))
            time.sleep(600)
    return {"seconds": [1.0, 2.0], "quick": size.quick}


def fake(log: Path, name: str, do: str = "work", inputs: tuple[Path, ...] = ()) -> Part:
    return Part(name, 0.1, partial(measure, log=log, name=name, do=do), inputs)
