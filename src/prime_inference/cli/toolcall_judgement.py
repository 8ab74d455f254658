"""Judges calls for the command line: a schema that is endless work costs a second at most."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import msgspec

from prime_inference.gateway.toolcalls.worker import LENGTH_BYTES, Job, details, framed
from prime_inference.toolcalls.effort import is_little_work
from prime_inference.toolcalls.tools import Tool
from prime_inference.toolcalls.validate import Problem, check_arguments

NOT_JUDGED = "not judged: the schema is too costly"

Found = tuple[Problem, ...] | None
"""What is wrong with a call; None: it was too much work to tell."""


def judge(calls: Sequence[tuple[str, Tool]]) -> list[Found]:
    """What is wrong with each of these arguments, by the schema of its tool."""
    found: list[Found] = [None] * len(calls)
    hard = []
    for index, (arguments, tool) in enumerate(calls):
        if is_little_work(arguments, tool):
            found[index] = check_arguments(arguments, tool)
        else:
            hard.append(index)
    while hard:
        answers = _ask([calls[index] for index in hard])
        found_now, hard = hard[: len(answers)], hard[len(answers) + 1 :]
        for index, problems in zip(found_now, answers, strict=True):
            found[index] = tuple(problems)  # the one behind these ended the process
    return found


def _ask(calls: Sequence[tuple[str, Tool]]) -> list[list[Problem]]:
    """What the gateway's worker says of them, up to the first that the kernel ended it for."""
    jobs = [
        Job([msgspec.json.encode(tool.parameters)], [(0, arguments)], detailed=True)
        for arguments, tool in calls
    ]
    command = [sys.executable, "-m", "prime_inference.gateway.toolcalls.worker"]
    done = subprocess.run(
        command, input=b"".join(map(framed, jobs)), capture_output=True, check=False
    )
    answers, rest = [], done.stdout
    while rest:
        end = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big")
        answers += details.decode(rest[LENGTH_BYTES:end])
        rest = rest[end:]
    return answers
