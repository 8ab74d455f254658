"""A gateway whose clock is not the database's says so."""

from __future__ import annotations

import time

import pytest

from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.billing.clock_check import OFF_S, ClockCheck


def test_a_clock_that_is_off_is_measured_and_told_once(caplog: pytest.LogCaptureFixture):
    theirs, own = 1000.0, 1000.0
    check = ClockCheck(lambda: theirs, lambda: own)
    for own, told in ((1000.1, 0), (1000 + 86_400, 1), (1000 + 86_400, 1), (1000, 1), (900, 2)):
        check.look()
        assert check.seconds == own - theirs
        assert caplog.text.count("differ by") == told


def test_databases_tell_the_time(ledger: SqlLedger):
    check = ClockCheck(ledger.now, time.time)
    check.look()
    assert abs(check.seconds) < OFF_S
