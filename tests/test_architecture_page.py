"""The tree of docs/architecture.md has every package of the product, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "prime_inference"


def test_the_page_names_the_packages_that_there_are() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.split("src/prime_inference/\n", 1)[1].split("```", 1)[0]
    named = set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    assert named == {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = set(re.findall(r"\bcompose\w*\.py", tree))
    assert modules == {path.name for path in SOURCE.glob("compose*.py")}
