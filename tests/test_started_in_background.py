"""The suite as nohup, or a script's background, starts it: with Ctrl-C ignored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CTRL_C = "tests/cli/test_process.py::test_text_appears_as_it_comes_and_ctrl_c_ends_quietly"


def test_tests_of_ctrl_c_pass_where_it_is_ignored():
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CTRL_C]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *pytest_command],
        capture_output=True, text=True, timeout=50, check=False,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
