"""What the admin API does. Every method runs in a worker thread and answers with JSON."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from prime_inference.accounts.audit import FIRST, first_break
from prime_inference.accounts.directory import Records
from prime_inference.billing.price_check import preview
from prime_inference.control import requests
from prime_inference.control.names import Names
from prime_inference.control.prices import price_object, price_of
from prime_inference.control.statement import statement
from prime_inference.domain import keys as api_keys
from prime_inference.domain.accounts import Tenant, TenantKind
from prime_inference.domain.errors import InvalidRequest, NotFound
from prime_inference.domain.keys import ApiKey, Scope
from prime_inference.domain.limits import MOST_AMOUNT, Limit, LimitKind
from prime_inference.domain.money import nanodollars, usd_text
from prime_inference.gateway.account_api import limit_object, usage_report, wallet
from prime_inference.ports.accounts import Accounts
from prime_inference.ports.ledger import ADJUSTMENTS, CASH, Ledger, Transfer, tenant_account

MICRO = 1_000_000
ID_BYTES = 8  # 64 bits: ids that people type, of which there are few
AUDIT_ROWS = 10_000_000  # read whole when the chain is checked

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was let in."""

    actor: str
    body: bytes
    query: Mapping[str, str]
    parts: Sequence[str]  # of the path

    def decode(self, kind: type[T]) -> T:
        """The body. Raises InvalidRequest."""
        try:
            return msgspec.json.decode(self.body or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"The body is not right: {error}.") from error


class Operations:
    """Over the stores; `verifier` is the ledger on a connection of its own, `names` knows what
    else there is beside the records.
    """

    def __init__(
        self,
        accounts: Accounts,
        ledger: Ledger,
        verifier: Ledger,
        names: Callable[[Records], Names],
        wall_clock: Callable[[], float],
        set_aside: Callable[[], int],
    ) -> None:
        self._accounts = accounts
        self._ledger = ledger
        self._verifier = verifier
        self._names_of = names
        self._now = wall_clock
        self._set_aside = set_aside

    def routes(self) -> dict[tuple[str, str], Callable[[Call], object]]:
        """Methods and patterns of paths; groups become the parts of a call."""
        return {
            ("GET", "teams"): self.teams,
            ("POST", "teams"): self.add_team,
            ("GET", "people"): self.people,
            ("POST", "people"): self.add_person,
            ("PUT", "tenants/([^/]+)/payment"): self.set_payment,
            ("GET", "teams/([^/]+)/members"): self.members,
            ("PUT", "teams/([^/]+)/members/([^/]+)"): self.set_member,
            ("DELETE", "teams/([^/]+)/members/([^/]+)"): self.remove_member,
            ("GET", "keys"): self.keys,
            ("POST", "keys"): self.add_key,
            ("POST", "keys/([^/]+)/rotate"): self.rotate_key,
            ("POST", "keys/([^/]+)/revoke"): self.revoke_key,
            ("GET", "limits"): self.limits,
            ("POST", "limits"): self.add_limit,
            ("DELETE", "limits/([^/]+)"): self.remove_limit,
            ("GET", "prices"): self.prices,
            ("POST", "prices"): self.add_price,
            ("GET", "usage"): self.usage,
            ("GET", "wallet/([^/]+)"): self.wallet,
            ("GET", "statements/([^/]+)/([^/]+)"): self.statement,
            ("POST", "credits"): self.credit,
            ("POST", "adjustments"): self.adjust,
            ("GET", "ledger/verify"): self.verify,
            ("GET", "audit"): self.audit,
        }

    # -- teams

    def teams(self, call: Call) -> object:
        return self._tenants("team")

    def people(self, call: Call) -> object:
        return self._tenants("person")

    def add_team(self, call: Call) -> object:
        return self._add_tenant(call, "team")

    def add_person(self, call: Call) -> object:
        return self._add_tenant(call, "person")

    def set_payment(self, call: Call) -> object:
        tenant = call.parts[0]
        self._names().require_tenant(tenant)
        payment = call.decode(requests.SetPayment).payment
        self._accounts.set_payment(tenant, payment, call.actor, self._now())
        return {"tenant": tenant, "payment": payment}

    def members(self, call: Call) -> object:
        team = call.parts[0]
        records = self._accounts.load()
        self._names_of(records).require_tenant(team, "team")
        names = {tenant.id: tenant.name for tenant in records.tenants}
        found = [
            {"userId": member.person, "name": names[member.person], "role": str(member.role)}
            for member in records.members
            if member.team == team
        ]
        return {"members": found, "total_count": len(found)}

    def set_member(self, call: Call) -> object:
        team, person = call.parts
        role = call.decode(requests.SetMember).role
        names = self._names()
        names.require_tenant(team, "team")
        names.require_tenant(person, "person")
        self._accounts.set_member(team, person, role, call.actor, self._now())
        return {"teamId": team, "userId": person, "role": str(role)}

    def remove_member(self, call: Call) -> object:
        team, person = call.parts
        self._accounts.remove_member(team, person, call.actor, self._now())
        return {"teamId": team, "userId": person}

    # -- keys

    def keys(self, call: Call) -> object:
        tenant = call.query.get("tenant")
        if tenant is not None:
            self._names().require_tenant(tenant)
        found = [key for key in self._accounts.load().keys if tenant in (None, key.tenant)]
        return {"keys": [_key_object(key) for key in found], "total_count": len(found)}

    def add_key(self, call: Call) -> object:
        wanted = call.decode(requests.NewKey)
        for network in wanted.networks:
            ipaddress.ip_network(network)
        cap = None if wanted.spend_cap_usd is None else nanodollars(wanted.spend_cap_usd)
        names = self._names()
        names.require_tenant(wanted.tenant)
        names.require_endpoints(wanted.endpoints)
        names.require_models(wanted.models, to_come=wanted.new_model, param="models")
        now = self._now()
        text, key = api_keys.create(wanted.tenant, name=wanted.name, created_at=now)
        scope = Scope(
            frozenset(wanted.models), frozenset(wanted.endpoints), frozenset(wanted.networks)
        )
        lasts = wanted.expires_in_seconds
        key = replace(
            key, expires_at=None if lasts is None else now + lasts, scope=scope
        )  # fmt: skip
        limit = (
            None
            if cap is None
            else Limit(_id("lim"), LimitKind.BUDGET_TOTAL, cap, key_id=key.key_id)
        )
        if limit is not None:  # first: a key must not be usable before its cap is there
            self._accounts.add_limit(limit, call.actor, now)
        self._accounts.add_key(key, call.actor)
        return {**_key_object(key), "key": text}

    def rotate_key(self, call: Call) -> object:
        overlap = call.decode(requests.RotateKey).overlap_seconds
        text, key = api_keys.rotate(
            self._live_key(call.parts[0]), now=self._now(), overlap_seconds=overlap
        )
        self._accounts.replace_key(key, "key.rotate", call.actor, self._now())
        return {**_key_object(key), "key": text}

    def revoke_key(self, call: Call) -> object:
        key = replace(self._live_key(call.parts[0]), revoked_at=self._now())
        self._accounts.replace_key(key, "key.revoke", call.actor, self._now())
        return _key_object(key)

    # -- limits and prices

    def limits(self, call: Call) -> object:
        found = self._accounts.load().limits
        return {"limits": [limit_object(limit, self._now()) for limit in found]}

    def add_limit(self, call: Call) -> object:
        wanted = call.decode(requests.NewLimit)
        if wanted.kind is LimitKind.WALLET:
            raise InvalidRequest(
                "A wallet's limit is what was paid in: PUT /tenants/<id>/payment.", param="kind"
            )
        if (wanted.most_usd is not None) is not wanted.kind.is_budget:
            raise InvalidRequest("A budget has 'most_usd', every other limit 'most'.")
        most = wanted.most if wanted.most_usd is None else nanodollars(wanted.most_usd)
        if most is None:
            raise InvalidRequest("A limit needs 'most'.")
        names = self._names()
        if wanted.key is not None:
            names.require_key(wanted.key)
        if wanted.tenant is not None:
            names.require_tenant(wanted.tenant)
        if wanted.model is not None:
            names.require_models([wanted.model], to_come=wanted.new_model)
        limit = Limit(_id("lim"), wanted.kind, most, wanted.key, wanted.tenant, wanted.model)
        self._accounts.add_limit(limit, call.actor, self._now())
        return limit_object(limit, self._now())

    def remove_limit(self, call: Call) -> object:
        self._accounts.remove_limit(call.parts[0], call.actor, self._now())
        return {"id": call.parts[0]}

    def prices(self, call: Call) -> object:
        model = call.query.get("model")
        found = [price for price in self._accounts.load().prices if model in (None, price.model)]
        return {"prices": [price_object(price) for price in found]}

    def add_price(self, call: Call) -> object:
        wanted = call.decode(requests.NewPrice)
        self._names().require_models([wanted.model], to_come=wanted.new_model)
        known = [each for each in self._accounts.load().prices if each.model == wanted.model]
        version = max((price.version for price in known), default=0) + 1
        price = price_of(wanted, version, self._now())
        before = max(known, key=lambda each: each.version, default=None)
        seen = preview(price, before)
        if not wanted.confirm:
            seen.confirmed()
        self._accounts.add_price(price, call.actor, self._now())
        return {**price_object(price), "preview": str(seen)}

    # -- money

    def usage(self, call: Call) -> object:
        tenant = call.query.get("tenant")
        if tenant is not None:
            self._names().require_tenant(tenant)
        return usage_report(self._ledger, call.query, tenant)

    def wallet(self, call: Call) -> object:
        self._names().require_tenant(call.parts[0])
        return wallet(self._ledger, call.parts[0], call.query)

    def statement(self, call: Call) -> object:
        tenant, month = call.parts
        self._names().require_tenant(tenant)
        return statement(self._ledger, tenant, month)

    def credit(self, call: Call) -> object:
        wanted = call.decode(requests.NewTransfer)
        amount = nanodollars(wanted.amount_usd)
        if amount <= 0:
            raise InvalidRequest("A credit is more than nothing.", param="amount_usd")
        return self._transfer(call, wanted, amount, CASH)

    def adjust(self, call: Call) -> object:
        """In the tenant's favour, or against it if the amount is negative."""
        wanted = call.decode(requests.NewTransfer)
        return self._transfer(call, wanted, nanodollars(wanted.amount_usd), ADJUSTMENTS)

    def verify(self, call: Call) -> object:
        found = self._verifier.verify()
        entries = self._accounts.audit(AUDIT_ROWS)
        broken = first_break(entries)
        problems = list(found.problems)
        if aside := self._set_aside():
            problems.append(f"{aside} events of this gateway are set aside (docs/billing.md)")
        return {
            "sound": not problems and broken is None,
            "events": found.events,
            "transfers": found.transfers,
            "accounts": found.accounts,
            "event_cost_usd": usd_text(found.event_cost),
            "revenue_usd": usd_text(found.revenue),
            "problems": problems,
            "audit_broken_at": broken,
            "audit_entries": len(entries),
            "audit_head": entries[-1].hash if entries else FIRST,
        }

    def audit(self, call: Call) -> object:
        text = call.query.get("limit", "100")
        if not re.fullmatch(r"[0-9]{1,8}", text):
            raise InvalidRequest("'limit' is a number below 100,000,000.", param="limit")
        entries = self._accounts.audit(int(text))
        return {"entries": [asdict(entry) for entry in entries]}

    def _transfer(
        self, call: Call, wanted: requests.NewTransfer, amount: int, other: str
    ) -> object:
        self._names().require_tenant(wanted.tenant)
        if abs(amount) > MOST_AMOUNT:
            raise InvalidRequest(
                f"A transfer moves at most ${usd_text(MOST_AMOUNT)}.", param="amount_usd"
            )
        own = tenant_account(wanted.tenant)
        debit, credit = (other, own) if amount >= 0 else (own, other)
        now = self._now()
        transfer = Transfer(
            wanted.tenant,
            wanted.reference,
            "credit" if other == CASH else "adjustment",
            debit,
            credit,
            abs(amount),
            int(now * MICRO),
            wanted.about,
            wanted.memo,
        )
        fresh = self._ledger.transfer(transfer)
        # also when it is repeated: gateways read wallets anew after an entry, and the first try
        # may have ended between ledger and entry
        action = transfer.kind if fresh else f"{transfer.kind}.again"
        detail = f"{wanted.reference} {wanted.amount_usd}"
        self._accounts.note(action, wanted.tenant, detail, call.actor, now)
        return {
            "reference": wanted.reference,
            "fresh": fresh,
            "balance_usd": usd_text(self._ledger.balance(own)),
        }

    def _tenants(self, kind: TenantKind) -> object:
        found = [tenant for tenant in self._accounts.load().tenants if tenant.kind == kind]
        name = "teams" if kind == "team" else "people"
        return {name: [_tenant_object(tenant) for tenant in found], "total_count": len(found)}

    def _add_tenant(self, call: Call, kind: TenantKind) -> object:
        wanted = call.decode(requests.NewTenant)
        prefix = "team" if kind == "team" else "user"
        tenant = Tenant(_id(prefix), kind, wanted.name, wanted.slug, self._now())
        self._accounts.add_tenant(tenant, call.actor)
        return _tenant_object(tenant)

    def _names(self) -> Names:
        return self._names_of(self._accounts.load())

    def _live_key(self, key_id: str) -> ApiKey:
        records: Records = self._accounts.load()
        for key in records.keys:
            if key.key_id == key_id:
                if api_keys.ended(key, self._now()):
                    raise NotFound(f"The key {key_id} was revoked or has expired.")
                return key
        self._names_of(records).require_key(key_id)
        raise NotFound(f"The key {key_id} is this machine's own, not an account's.")


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(ID_BYTES)}"


def _tenant_object(tenant: Tenant) -> dict[str, object]:
    name = "teamId" if tenant.kind == "team" else "userId"
    return {
        name: tenant.id,
        "name": tenant.name,
        "slug": tenant.slug,
        "createdAt": _iso(tenant.created_at),
        "payment": tenant.payment,
    }


def _key_object(key: ApiKey) -> dict[str, object]:
    scope = key.scope or Scope()
    return {
        "id": key.key_id,
        "tenant": key.tenant,
        "name": key.name,
        "last_four": key.last_four,
        "created_at": _iso(key.created_at),
        "expires_at": _iso(key.expires_at),
        "revoked_at": _iso(key.revoked_at),
        "earlier_texts": [
            {"last_four": each.last_four, "until": _iso(each.until)} for each in key.earlier
        ],
        "models": sorted(scope.models),
        "endpoints": sorted(scope.routes),
        "networks": sorted(scope.networks),
    }


def _iso(seconds: float | None) -> Any:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
