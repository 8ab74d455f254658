"""A database's URL holds a password: nothing that goes wrong with it repeats it."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sql.open import open_database
from prime_inference.ports.accounts import AccountsUnavailable


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:SECRET@[bad/x",
        "postgresql://u:SECRET%ZZ@127.0.0.1/x",
        "postgresql://u:SECRET@127.0.0.1:1/x?SECRET=1",
        "postgresql://u:SECRET@127.0.0.1:port/x",
        "postgresql://u:SECRET@127.0.0.1:1/x",  # right, and nobody there
    ],
)
def test_a_malformed_url_is_not_repeated(url: str, tmp_path: Path):
    with pytest.raises(AccountsUnavailable) as caught:
        SqlAccounts(open_database(url, tmp_path)).load()
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))
