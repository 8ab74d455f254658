"""Wires accounts, ledger, outbox and limits together, for a gateway that bills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_inference.accounts.live import LiveDirectory
from prime_inference.adapters.files.key_store import LOCAL_TENANT, FileKeyStore
from prime_inference.adapters.files.outbox import FileOutbox, FileOutboxReader
from prime_inference.adapters.memory.limits import MemoryLimits
from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import SchemaTooNew, migrate
from prime_inference.adapters.sql.open import is_database, open_database
from prime_inference.billing.clock_check import ClockCheck
from prime_inference.billing.holds import Holds
from prime_inference.billing.outbox_lag import OutboxLag
from prime_inference.billing.reservation_charges import HeldBackClock, ReservationCharges
from prime_inference.billing.shipper import Shipper
from prime_inference.compose_shipper import ShipperOrder, ShipperProcess, ShipperThread
from prime_inference.control.admin_api import AdminApi
from prime_inference.control.books import BookOperations
from prime_inference.control.fleet_prices import FleetPrices
from prime_inference.control.keys import KeyOperations
from prime_inference.control.limits import LimitOperations
from prime_inference.control.names import Names
from prime_inference.control.prices import PriceOperations
from prime_inference.control.reservations import ReservationOperations
from prime_inference.control.tenants import TenantOperations
from prime_inference.domain.accounts import Tenant
from prime_inference.domain.errors import CannotStart
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.limits import Limit, window_last_day
from prime_inference.domain.models import Deployment
from prime_inference.domain.prices import Price, free
from prime_inference.domain.reservations import Speed
from prime_inference.gateway.account_api import AccountApi
from prime_inference.gateway.app import BASE, Endpoint
from prime_inference.gateway.auth import Authenticator
from prime_inference.gateway.billing import Billing
from prime_inference.gateway.cache_salts import CacheSalts
from prime_inference.gateway.metrics import Metrics
from prime_inference.gateway.reservation_status import ReservationView, reservation_views
from prime_inference.gateway.reservations_api import ReservationsApi
from prime_inference.ports.accounts import AccountExists
from prime_inference.ports.catalog import Catalog
from prime_inference.ports.clock import steady_clock
from prime_inference.ports.ledger import Ledger, Transfer, UsageFilter
from prime_inference.ports.limits import LimitStore
from prime_inference.ports.outbox import Outbox
from prime_inference.reliability.background import Background, end
from prime_inference.reliability.guard import Guard

NOUNS = (TenantOperations, KeyOperations, LimitOperations, PriceOperations)
ANSWER_S = 10.0  # of our own event loop: by then whoever asks has given up
SECRET_BYTES = 32  # 256 bits: one SHA-256 is enough to compare it


@dataclass(frozen=True, slots=True)
class BillingOptions:
    """Where a gateway keeps accounts and what it counts limits in."""

    database: str  # sqlite, sqlite:FILE, or postgresql://...
    redis: str | None = None  # URL; None: limits are this process's own
    shipper_process: bool = False  # else a thread: slower requests, one process less
    replicas: int = 1  # gateways that share the limits; each takes its part when Redis is away

    def __post_init__(self) -> None:
        """Raises ValueError for what is no database."""
        if not is_database(self.database):
            raise ValueError("a database is sqlite, sqlite:FILE, or postgresql://...")


@dataclass(frozen=True, slots=True)
class BillingParts:
    """What the listeners need of it."""

    directory: LiveDirectory
    billing: Billing
    ledger: Ledger
    admin: AdminApi
    outbox: Outbox
    lag: OutboxLag
    clock: ClockCheck
    holds: Holds
    files: FileKeyStore
    fleet: Callable[[], Sequence[Deployment]]
    speed: Speed
    fleet_prices: FleetPrices

    def find(self, key_id: str) -> ApiKey | None:
        """A key of an account, or this machine's own. Implements `ports.keys.KeyStore`."""
        return self.directory.find(key_id) or self.files.find(key_id)

    def billed_to(self, key: ApiKey, team: str) -> ApiKey:
        return self.directory.current.billed_to(key, team)

    def price(self, model: str) -> Price:
        """What is charged now, whatever else the catalogue says."""
        return self.directory.current.prices.at(model, time.time()) or free(model)

    def reservation_views(self, guard: Guard) -> list[ReservationView]:
        return reservation_views(self.directory.current.reservations, guard, self.holds.output_left)

    def authenticator(self) -> Authenticator:
        return Authenticator(self, self.billed_to)

    def routes(self, auth: Authenticator, metrics: Metrics) -> Mapping[str, Mapping[str, Endpoint]]:
        """What the public API has besides, where there are accounts; and their metrics."""
        account = AccountApi(auth, self.directory, self.billing, self.ledger)
        metrics.watch(
            "prime_outbox_bytes",
            "Usage events that the ledger has not confirmed, in bytes.",
            self.outbox.waiting,
        )
        metrics.watch(
            "prime_outbox_lag_seconds",
            "How long the oldest of these events has been waiting at least.",
            lambda: self.lag.seconds,
        )
        metrics.watch(
            "prime_events_set_aside",
            "Usage events that the ledger can never take; they are kept beside the outbox.",
            self.outbox.set_aside,
        )
        metrics.watch(
            "prime_outbox_rewound",
            "How often the outbox was cut or older than its cursor, and shipped from its start.",
            lambda: self.outbox.rewound,
        )
        metrics.watch(
            "prime_clock_ahead_seconds",
            "How far this machine's clock is ahead of the database's.",
            lambda: self.clock.seconds,
        )
        metrics.watch(
            "prime_limits_degraded",
            "1 while limits are decided without their store.",
            lambda: self.holds.degraded,
        )
        reservations = ReservationsApi(auth, self.directory, self.fleet, self.speed)
        return {**account.routes(BASE), **reservations.routes(BASE)}


@contextlib.asynccontextmanager
async def billing_parts(
    options: BillingOptions,
    state_dir: Path,
    files: FileKeyStore,
    catalog: Catalog,
    speed: Speed,
    background: Background,
) -> AsyncIterator[BillingParts]:
    """Open the stores, bring their tables up to date, start the shipper. Raises CannotStart.

    `speed` is that of the catalogue's deployments; `background` runs what goes on beside the
    requests.
    """

    def fleet() -> list[Deployment]:
        return [each for model in catalog.models() for each in catalog.deployments(model.id)]

    def names() -> Names:
        return Names(accounts.load(), [model.id for model in catalog.models()], files.find)

    async with contextlib.AsyncExitStack() as stack:

        def opened(*, patient: bool = False) -> Database:
            database = open_database(options.database, state_dir, patient=patient)
            stack.callback(database.close)
            return database

        first = opened()
        await asyncio.to_thread(_migrate, first)
        accounts, ledger = SqlAccounts(first), SqlLedger(opened())
        await asyncio.to_thread(_add_local_tenant, accounts)
        outbox = FileOutbox(state_dir / "outbox")
        stack.callback(outbox.close)
        store = _limit_store(options.redis)
        stack.push_async_callback(store.close)
        holds = Holds(store, ledger_spent(ledger), replicas=lambda: options.replicas)
        directory = LiveDirectory(accounts)
        await directory.refresh()
        # replicas with the same key share prefix caches for the same tenant
        salt_key = os.environ.get("PRIME_SALT_KEY") or _secret(state_dir / "salt_key", "")
        billing = Billing(directory, outbox, holds, CacheSalts(salt_key.encode()))
        await _start_shipper(options, state_dir, stack, background)
        stack.push_async_callback(holds.drain)
        stack.callback(billing.flush)
        verifier = SqlLedger(opened(patient=True))  # minutes, for which nobody else must wait
        nouns = [
            *(noun(accounts, names, time.time) for noun in NOUNS),
            BookOperations(accounts, ledger, verifier, names, time.time, outbox.set_aside),
            ReservationOperations(accounts, names, fleet, _from_threads(speed), time.time),
        ]
        admin = AdminApi(nouns, directory, admin_key(state_dir))
        charges = ReservationCharges(
            ledger,
            lambda: directory.current.reservations,
            HeldBackClock(time.time, steady_clock()),
            _noting(accounts),
            ledger.now,
        )
        clock = ClockCheck(ledger.now, time.time)
        lag = OutboxLag(outbox, asyncio.get_running_loop().time)
        tasks = [
            background.start("outbox lag", lag.run),
            background.start("clock check", clock.run),
            background.start("accounts", directory.run),
            background.start("holds", holds.run),
            background.start("reservation charges", charges.run),
        ]
        stack.push_async_callback(end, tasks)
        prices = FleetPrices(accounts, directory, time.time)
        yield BillingParts(
            directory,
            billing,
            ledger,
            admin,
            outbox,
            lag,
            clock,
            holds,
            files,
            fleet,
            speed,
            prices,
        )


async def _start_shipper(
    options: BillingOptions,
    state_dir: Path,
    stack: contextlib.AsyncExitStack,
    background: Background,
) -> None:
    source = f"{os.uname().nodename}:{os.getpid()}"
    shipper: ShipperProcess | ShipperThread
    if options.shipper_process:
        shipper = ShipperProcess(ShipperOrder(options.database, str(state_dir), source))
    else:
        reader = FileOutboxReader(state_dir / "outbox")
        stack.callback(reader.close)
        ledger = SqlLedger(open_database(options.database, state_dir))
        stack.callback(ledger.close)
        shipper = ShipperThread(Shipper(reader, ledger, source))
    task = background.start("shipper", shipper.run)
    stack.push_async_callback(shipper.stop)
    stack.push_async_callback(end, [task])


def _from_threads(speed: Speed) -> Speed:
    """What is measured changes on the event loop, and is read there."""
    loop = asyncio.get_running_loop()

    async def on_loop(deployment: Deployment) -> float | None:
        return speed(deployment)

    def asked(deployment: Deployment) -> float | None:
        return asyncio.run_coroutine_threadsafe(on_loop(deployment), loop).result(ANSWER_S)

    return asked


def ledger_spent(ledger: Ledger) -> Callable[[Limit, int], asyncio.Future[int]]:
    """What the ledger has for a limit in a window, read in a worker thread."""

    def read(limit: Limit, window: int) -> int:
        last = window_last_day(limit.kind, window)
        where = UsageFilter(
            limit.tenant, limit.key_id, limit.model, first_day=window, last_day=last
        )
        return ledger.usage((), where)[0].cost

    def spent(limit: Limit, window: int) -> asyncio.Future[int]:
        return asyncio.get_running_loop().run_in_executor(None, read, limit, window)

    return spent


def admin_key(state_dir: Path) -> str:
    """The admin key of this state folder, made on first use."""
    return _secret(state_dir / "admin_key", "pi_admin_")


def _secret(path: Path, prefix: str) -> str:
    """A secret that stays the same: what the file holds, made on first use."""
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{prefix}{secrets.token_urlsafe(SECRET_BYTES)}\n")
        draft.replace(path)
    return path.read_text().strip()


def _migrate(database: Database) -> None:
    try:
        migrate(database)
    except SchemaTooNew as error:
        raise CannotStart(f"The database is of a later release: {error}.") from error
    except database.unavailable as error:
        raise CannotStart(f"The database cannot be used: {error}") from error


def _add_local_tenant(accounts: SqlAccounts) -> None:
    """This machine's own key belongs to a person like any other."""
    local = Tenant(LOCAL_TENANT, "person", "this machine", LOCAL_TENANT, time.time())
    if not any(tenant.id == LOCAL_TENANT for tenant in accounts.load().tenants):
        with contextlib.suppress(AccountExists):  # another replica was first
            accounts.add_tenant(local, "system")


def _limit_store(redis: str | None) -> LimitStore:
    if redis is None:
        return MemoryLimits(time.monotonic)
    from prime_inference.adapters.redis.limits import RedisLimits

    return RedisLimits(redis)


def _noting(accounts: SqlAccounts) -> Callable[[Transfer], None]:
    """Notes what was charged in the audit log; replicas read prepaid balances anew at that."""

    def note(paid: Transfer) -> None:
        accounts.note("reservation.charge", paid.tenant, paid.reference, "system", time.time())

    return note
