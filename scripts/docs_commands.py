"""Checks and runs the commands that the documentation shows.

    python scripts/docs_commands.py check FILE.md ...    verbs, commands and links exist
    python scripts/docs_commands.py run FILE.md          run its blocks in order, as a reader would

A block of language `sh` is run and must succeed; `sh background` is started, must print
an http:// address, runs until the end, and is stopped with SIGINT. Other blocks are text.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK_SECONDS = 1800  # `make test` on two cores takes a quarter of it
DEEPEST = 4  # words of a command, e.g. prime inference bench agents run
SHALLOWEST = 2  # these must exist; later ones may be arguments
READY_SECONDS = 120  # a server that must first fetch its weights

FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?://|#)(?P<target>[^)#\s]+)")


@dataclass(frozen=True)
class Block:
    file: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def blocks(file: Path) -> Iterator[Block]:
    text = file.read_text()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(file, line, match["language"].strip(), match["text"])


# -- check


def check(files: list[Path]) -> list[str]:
    """What is wrong with the commands and links of these files."""
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    wrong = []
    for file in files:
        for target in LINK.findall(file.read_text()):
            if not (file.parent / target).exists():
                wrong.append(f"{file.relative_to(ROOT)}: links to {target}, which is not there")
        for block in blocks(file):
            if block.language.split()[:1] == ["sh"]:
                wrong += [f"{block.place}: {fault}" for fault in _faults(block, verbs)]
    return wrong


def _faults(block: Block, verbs: set[str]) -> Iterator[str]:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = _words(line)
        if words[:1] == ["make"]:
            for verb in [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]:
                if verb not in verbs:
                    yield f"there is no `make {verb}`"
        elif words and words[0].split("/")[-1] == "prime":
            yield from _prime_fault(words[1:])


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # the middle of a here-document
        return []


def _prime_fault(words: list[str]) -> Iterator[str]:
    """Ask the command itself for help on the command shown, and look for its options there."""
    command: list[str] = []
    help_text = _help(command)
    for word in words:
        if "COMMAND [ARGS]" not in help_text.stdout or not re.fullmatch(r"[a-z][a-z-]*", word):
            break  # no group, or no name of a command
        command.append(word)
        help_text = _help(command)
    if help_text.returncode:
        yield f"there is no `prime {' '.join(command)}`"
        return
    for word in words:
        option = word.split("=")[0]
        if option.startswith("--") and option not in help_text.stdout:
            yield f"`prime {' '.join(command)}` has no {option}"


def _help(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("prime"), *command, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
    )


# -- run


def run(file: Path) -> int:
    """Run a file's blocks in order. Returns an exit status."""
    environment = {**os.environ, "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"}
    background: list[subprocess.Popen[str]] = []
    try:
        for block in blocks(file):
            if block.language not in ("sh", "sh background"):
                continue
            print(f"\n--- {block.place}\n{block.text}---", flush=True)
            began = time.monotonic()
            if block.language == "sh":
                status = _run_block(block, environment)
            else:
                status = _start_block(block, environment, background)
            print(f"--- {time.monotonic() - began:.1f} s, exit status {status}", flush=True)
            if status:
                return status
    finally:
        for process in background:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)
    return 0


def _run_block(block: Block, environment: dict[str, str]) -> int:
    script = ["bash", "-euo", "pipefail", "-c", block.text]
    return subprocess.run(
        script,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=BLOCK_SECONDS,
        check=False,
    ).returncode


def _start_block(
    block: Block, environment: dict[str, str], background: list[subprocess.Popen[str]]
) -> int:
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f"exec {block.text.strip()}"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    background.append(process)
    ready = threading.Event()
    threading.Thread(target=_echo, args=(process, ready), daemon=True).start()
    return 0 if ready.wait(READY_SECONDS) and process.poll() is None else 1


def _echo(process: subprocess.Popen[str], ready: threading.Event) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if "http://" in line:
            ready.set()


def main(arguments: list[str]) -> int:
    match arguments:
        case ["check", *names] if names:
            wrong = check([Path(name).resolve() for name in names])
            print("\n".join(wrong) or f"commands and links of {len(names)} files are right")
            return 1 if wrong else 0
        case ["run", name]:
            return run(Path(name).resolve())
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
