"""The outbox and the shipper: at least once from the one, exactly once in the ledger."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_inference.adapters.files.outbox import FileOutbox, FileOutboxReader
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.adapters.sqlite.database import SqliteDatabase
from prime_inference.billing.outbox_lag import STUCK_S, OutboxLag
from prime_inference.billing.rating import usage_event
from prime_inference.billing.shipper import BATCH, Shipper
from prime_inference.compose_shipper import ShipperOrder, ShipperProcess, ShipperThread
from prime_inference.domain.errors import CannotStart
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import Applied, LedgerUnavailable
from prime_inference.reliability.background import Background, end

from .samples import generation, price

APPEND_AND_DIE = """
import os, pathlib, sys
from prime_inference.adapters.files.outbox import FileOutbox
from tests.billing.test_outbox import events
FileOutbox(pathlib.Path(sys.argv[1])).append(events(3))
os.kill(os.getpid(), 9)
"""


APPEND_TO_A_FULL_DISK = """
import pathlib, resource, signal, sys
from prime_inference.adapters.files.outbox import FileOutbox
from prime_inference.ports.outbox import OutboxUnavailable
from tests.billing.test_outbox import events
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
outbox = FileOutbox(pathlib.Path(sys.argv[1]))
outbox.append(events(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # as a disk with little room
for _ in range(2):
    try:
        outbox.append(events(3))
    except OutboxUnavailable:
        continue
    sys.exit("it was written")
"""


def events(count: int) -> list[UsageEvent]:
    return [usage_event(generation(id=f"g{n}"), price()) for n in range(count)]


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[FileOutbox]:
    outbox = FileOutbox(tmp_path / "outbox")
    yield outbox
    outbox.close()


@pytest.fixture
def reader(outbox: FileOutbox, tmp_path: Path) -> Iterator[FileOutboxReader]:
    reader = FileOutboxReader(tmp_path / "outbox")
    yield reader
    reader.close()


def left(folder: Path) -> list[UsageEvent]:
    """What a shipper that starts now would find."""
    reader = FileOutboxReader(folder)
    try:
        return [event for _, event in reader.oldest(99)]
    finally:
        reader.close()


@pytest.fixture
def books(tmp_path: Path) -> Iterator[SqlLedger]:
    database = SqliteDatabase(tmp_path / "ledger.db", "normal")
    migrate(database)
    yield SqlLedger(database)
    database.close()


class LosesAnswers(SqlLedger):
    """Applies, and then says that it could not: what a cut connection looks like."""

    losing = True

    def apply(self, source: str, events: Sequence[UsageEvent], now: int) -> Applied:
        applied = super().apply(source, events, now)
        if self.losing:
            raise LedgerUnavailable("the answer was lost")
        return applied


def test_events_come_out_as_they_went_in_and_in_order(outbox: FileOutbox, reader: FileOutboxReader):
    sent = events(5)
    outbox.append(sent[:1])
    outbox.append(sent[1:])
    assert [event for _, event in reader.oldest(3)] == sent[:3]
    reader.delete(reader.oldest(3)[-1][0])
    assert [event for _, event in reader.oldest(9)] == sent[3:]
    assert outbox.waiting() > 0
    reader.delete(reader.oldest(9)[-1][0])
    assert outbox.waiting() == 0


def test_what_was_appended_survives_the_death_of_its_process(tmp_path: Path):
    path = tmp_path / "outbox"
    child = subprocess.run([sys.executable, "-c", APPEND_AND_DIE, path], check=False)
    assert child.returncode == -9
    assert left(path) == events(3)


def test_the_outbox_can_be_read_by_its_owner_only(tmp_path: Path, outbox: FileOutbox):
    outbox.append(events(1))
    assert (tmp_path / "outbox").stat().st_mode & 0o077 == 0
    for path in (tmp_path / "outbox").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_outbox_that_cannot_be_written_says_so_and_keeps_nothing(tmp_path: Path):
    child = subprocess.run([sys.executable, "-c", APPEND_TO_A_FULL_DISK, tmp_path / "outbox"])
    assert child.returncode == 0
    assert left(tmp_path / "outbox") == events(1)


def test_one_process_writes_to_an_outbox(tmp_path: Path, outbox: FileOutbox):
    with pytest.raises(CannotStart, match="state-dir"):
        FileOutbox(tmp_path / "outbox")


def test_one_shipper_reads_an_outbox(tmp_path: Path, reader: FileOutboxReader):
    with pytest.raises(CannotStart, match="shipper"):
        FileOutboxReader(tmp_path / "outbox")


@given(cut=st.integers(0, 2_000))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_is_torn_off_the_end_is_only_the_end(tmp_path: Path, cut: int):
    with TemporaryDirectory(dir=tmp_path) as folder:
        outbox = FileOutbox(Path(folder))
        outbox.append(events(5))
        outbox.close()
        (path,) = Path(folder).glob("*.log")
        data = path.read_bytes()
        rest = data[: max(0, len(data) - cut)]
        path.write_bytes(rest)
        whole = sum(line in rest for line in data.splitlines())  # the line feed is no content
        outbox = FileOutbox(Path(folder))
        outbox.append(events(1))
        outbox.close()
        assert left(Path(folder)) == events(5)[:whole] + events(1)


@given(data=st.data())
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_outbox_is_a_queue_over_files_and_restarts(tmp_path: Path, data: st.DataObject):
    with TemporaryDirectory(dir=tmp_path) as name:
        folder = Path(name)
        outbox = FileOutbox(folder, file_bytes=400)  # two events
        reader = FileOutboxReader(folder)
        queue: list[UsageEvent] = []
        made = 0
        for _ in range(data.draw(st.integers(1, 12))):
            match data.draw(st.sampled_from(["append", "delete", "writer", "shipper"])):
                case "append":
                    new = events(made + data.draw(st.integers(1, 3)))[made:]
                    made += len(new)
                    queue += new
                    outbox.append(new)
                case "delete":
                    found = reader.oldest(data.draw(st.integers(1, 4)))
                    if found:
                        reader.delete(found[-1][0])
                        del queue[: len(found)]
                case "writer":
                    outbox.close()
                    outbox = FileOutbox(folder, file_bytes=400)
                case "shipper":
                    reader.close()
                    reader = FileOutboxReader(folder)
            assert (outbox.waiting() > 0) is bool(queue)
            assert [event for _, event in reader.oldest(99)] == queue
        if not queue:
            assert len(list(folder.glob("*.log"))) == 1
        outbox.close()
        reader.close()


def same_length(first: int, count: int) -> list[UsageEvent]:
    """So that lines of one file begin where lines of another would."""
    return [usage_event(generation(id=f"g{n:05d}"), price()) for n in range(first, first + count)]


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def lose(*paths: Path) -> None:
    for path in paths:
        path.unlink()


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "emptied": lambda log, cursor: cut(log, 0),
    "cut in the middle": lambda log, cursor: cut(log, 0.5),
    "cursor beyond": lambda log, cursor: cursor.write_bytes(b"%020d" % 10**6),
    "cursor no outbox reaches": lambda log, cursor: cursor.write_bytes(b"9" * 20),
    "cursor of bytes": lambda log, cursor: cursor.write_bytes(bytes(range(200, 220))),
    "cursor in a line": lambda log, cursor: cursor.write_bytes(b"%020d" % 77),
    "cursor lost": lambda log, cursor: lose(cursor),
    "log lost": lambda log, cursor: lose(log),
    "all lost": lambda log, cursor: lose(log, cursor),
    "others' files": lambda log, cursor: [
        shutil.copy(log, log.with_name(name)) for name in ("x.log", "0.log", f"{log.name}.log")
    ],
}


@pytest.mark.parametrize("file_bytes", [2_000, 10**6], ids=["files", "one file"])
@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_becomes_of_an_outbox_what_is_written_later_is_accounted_once(
    damage: str, running: bool, file_bytes: int, tmp_path: Path, books: SqlLedger
):
    """Cut, put back from an older copy, or its cursor broken, behind the processes' backs."""
    folder = tmp_path / "outbox"
    outbox, reader = FileOutbox(folder, file_bytes), FileOutboxReader(folder)

    def restart() -> None:
        nonlocal outbox, reader
        outbox.close()
        reader.close()
        outbox, reader = FileOutbox(folder, file_bytes), FileOutboxReader(folder)

    def ship() -> None:
        while Shipper(reader, books, "r1").ship_once():
            pass

    written = 0
    for _ in range(3):
        new = same_length(written, 20)
        outbox.append(new)
        written += len(new)
        ship()
    *_, log = sorted(folder.glob("*.log"))
    DAMAGES[damage](log, folder / "cursor")
    if running and "lost" in damage:
        restart()  # a file that is open cannot be missed
    if running:
        outbox.places()  # as is looked at each second
        ship()
    for again in (False, True):
        if not running or again:
            restart()
        outbox.append(same_length(written, 90))  # more than there was
        written += 90
        ship()
        assert books.verify().events == written
        assert (outbox.waiting(), outbox.set_aside()) == (0, 0)
        ship()
        assert outbox.waiting() == 0
    assert books.verify().sound


@pytest.mark.parametrize(
    "damage", ["emptied", "cursor beyond", "cursor of bytes", "cursor in a line"]
)
def test_an_outbox_that_is_not_as_it_was_left_is_told_of(
    damage: str, tmp_path: Path, books: SqlLedger, caplog: pytest.LogCaptureFixture
):
    folder = tmp_path / "outbox"
    outbox, reader = FileOutbox(folder), FileOutboxReader(folder)
    outbox.append(same_length(0, 20))
    Shipper(reader, books, "r1").ship_once()
    assert (outbox.waiting(), outbox.rewound, caplog.text) == (0, 0, "")
    outbox.close()
    reader.close()
    (log,) = folder.glob("*.log")
    DAMAGES[damage](log, folder / "cursor")
    outbox, reader = FileOutbox(folder), FileOutboxReader(folder)
    while Shipper(reader, books, "r1").ship_once():
        pass
    assert (outbox.waiting(), outbox.rewound) == (0, 1)
    assert "not as it was left" in caplog.text
    outbox.close()
    reader.close()


def test_the_shipper_drains_the_outbox_into_the_ledger(
    outbox: FileOutbox, reader: FileOutboxReader, books: SqlLedger
):
    sent = events(BATCH + 5)
    outbox.append(sent)
    shipper = Shipper(reader, books, "r1")
    shipper.stop()
    shipper.run()
    assert (outbox.waiting(), shipper.failing) == (0, False)
    found = books.verify()
    assert found.sound
    assert found.events == len(sent)
    assert found.revenue == sum(event.cost for event in sent)


def test_an_answer_that_is_lost_is_asked_for_again_and_counts_once(
    outbox: FileOutbox, reader: FileOutboxReader, tmp_path: Path
):
    database = SqliteDatabase(tmp_path / "ledger.db", "normal")
    migrate(database)
    books = LosesAnswers(database)
    outbox.append(events(3))
    shipper = Shipper(reader, books, "r1")
    for _ in range(3):
        with pytest.raises(LedgerUnavailable):
            shipper.ship_once()
    assert len(reader.oldest(9)) == 3
    books.losing = False
    assert shipper.ship_once() == 3
    assert outbox.waiting() == 0
    assert books.verify().events == 3
    assert books.verify().sound
    database.close()


def test_while_the_ledger_is_away_events_wait_and_then_go(
    outbox: FileOutbox, reader: FileOutboxReader, tmp_path: Path
):
    database = SqliteDatabase(tmp_path / "late.db", "normal")
    books = SqlLedger(database)  # no tables yet
    outbox.append(events(2))
    shipper = Shipper(reader, books, "r1")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(shipper.run)
        try:
            deadline = time.monotonic() + 10
            while not shipper.failing:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert outbox.waiting() > 0
            migrate(database)
        finally:
            shipper.stop()
        running.result()
    assert books.verify().events == 2
    database.close()


@pytest.mark.parametrize(
    "wrong", [{"completion_tokens": 9 * 10**18}, {"cost": 2**80}, {"cost": -1}, {"at": 2**70}]
)
def test_an_event_that_no_ledger_takes_is_set_aside_and_holds_up_no_other(
    wrong: dict[str, int], outbox: FileOutbox, reader: FileOutboxReader, books: SqlLedger
):
    sent = events(5)
    sent[2] = msgspec.structs.replace(sent[2], **wrong)
    outbox.append([event for event in sent if event is not sent[2]])
    ship = Shipper(Handed(sent, reader), books, "r1")
    ship.stop()
    ship.run()
    assert (outbox.waiting(), outbox.set_aside(), ship.failing) == (0, 1, False)
    assert (books.verify().sound, books.verify().events) == (True, 4)
    Shipper(Handed(sent, reader), books, "r1").ship_once()  # its shipper died in between
    assert outbox.set_aside() == 1


class Handed:
    """An outbox that hands out these events once, whatever its journal can hold."""

    def __init__(self, events: list[UsageEvent], reader: FileOutboxReader) -> None:
        self._events = events
        self._reader = reader
        self.sync, self.delete, self.close = reader.sync, reader.delete, reader.close

    def set_aside(self, event: UsageEvent) -> None:
        self._reader.set_aside(event)

    def oldest(self, most: int) -> Sequence[tuple[int, UsageEvent]]:
        place = self._reader.oldest(most)[-1][0] if self._reader.oldest(most) else 0
        events, self._events = self._events, []
        return [(place, event) for event in events]


async def test_a_shipper_that_ends_by_a_defect_is_started_again_counted_and_named(
    outbox: FileOutbox, reader: FileOutboxReader, books: SqlLedger
):
    outbox.append(events(2))
    apply, books.apply = books.apply, lambda *_: 1 // 0  # type: ignore[method-assign, assignment]
    background = Background(time.monotonic)
    thread = ShipperThread(Shipper(reader, books, "r1"))
    task = background.start("shipper", thread.run)
    async with asyncio.timeout(20):
        while not background.failures["shipper"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert background.failing["shipper"].startswith("ZeroDivisionError")
        books.apply = apply  # type: ignore[method-assign]
        while outbox.waiting():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await end([task])
    await thread.stop()
    assert (outbox.waiting(), books.verify().events) == (0, 2)


async def test_a_shipper_process_that_dies_is_started_again_and_counted(
    tmp_path: Path, outbox: FileOutbox, books: SqlLedger
):
    background = Background(time.monotonic)
    order = ShipperOrder(f"sqlite:{tmp_path / 'ledger.db'}", str(tmp_path), "r1")
    process = ShipperProcess(order)
    task = background.start("shipper", process.run)
    async with asyncio.timeout(30):
        for number in (1, 2):
            outbox.append(events(number)[-1:])
            while outbox.waiting():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            if number == 1:
                assert process._process is not None
                process._process.kill()
        assert background.failures["shipper"] == 1
        assert "ended with -9" in background.failing["shipper"]
    await end([task])
    await process.stop()
    assert books.verify().events == 2


def test_a_shipper_that_does_not_get_on_is_named_with_how_long_usage_waits(
    outbox: FileOutbox, reader: FileOutboxReader
):
    now = 100.0
    lag = OutboxLag(outbox, lambda: now)
    lag.look()
    assert (lag.seconds, lag.failing) == (0.0, {})
    for count in (1, 2):  # it ships, and more comes: never long ago
        outbox.append(events(count))
        lag.look()
        now += STUCK_S - 1
        reader.delete(reader.oldest(count)[-1][0])
        outbox.append(events(1))
        lag.look()
        assert (lag.seconds, lag.failing) == (0.0, {})
    now += STUCK_S + 22
    outbox.append(events(1))
    lag.look()
    assert lag.seconds == STUCK_S + 22
    assert "37 s" in lag.failing["shipper"]
    reader.delete(reader.oldest(9)[-1][0])
    lag.look()
    assert (lag.seconds, lag.failing) == (0.0, {})


def test_a_line_of_another_release_is_set_aside_once(outbox: FileOutbox, reader: FileOutboxReader):
    text = b'["later"]'
    outbox.append(events(1))
    (journal,) = (path for path in outbox._folder.glob("*.log"))
    with journal.open("ab") as file:
        file.write(b"%08x %b\n" % (zlib.crc32(text), text))
    for _ in range(3):
        assert len(reader.oldest(9)) == 1
    assert outbox.set_aside() == 1
