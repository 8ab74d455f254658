"""Tests of constraints against real xgrammar.

xgrammar brings torch, transformers and triton with it, some gigabytes, so these tests have an
environment of their own: `make test-grammar`. Elsewhere they are not collected at all.
"""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("xgrammar") else ["test_*.py"]
