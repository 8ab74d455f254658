"""All accounts as one replica knows them at a moment; replaced whole when something changes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prime_inference.domain.accounts import Member, Role, Tenant
from prime_inference.domain.errors import PermissionDenied
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.limits import Limit, wallet_limit
from prime_inference.domain.prices import Price, PriceBook
from prime_inference.domain.reservations import Reservation, State

MOST_CACHED = 100_000  # combinations of key, tenant and model whose limits are remembered


@dataclass(frozen=True, slots=True)
class Records:
    """What the store holds. `revision` changes whenever anything else does."""

    revision: int = -1
    tenants: Sequence[Tenant] = ()
    members: Sequence[Member] = ()
    keys: Sequence[ApiKey] = ()
    prices: Sequence[Price] = ()
    limits: Sequence[Limit] = ()
    paid: Mapping[str, int] = field(default_factory=dict)  # in by prepaid tenants, nanodollars
    reservations: Sequence[Reservation] = ()


@dataclass(slots=True)
class Directory:
    """Look-ups from memory. Build it with `Directory.of`."""

    revision: int
    prices: PriceBook
    keys: Mapping[str, ApiKey]
    tenants: Mapping[str, Tenant]
    _roles: Mapping[tuple[str, str], Role]
    _limits: Sequence[Limit]
    reservations: Sequence[Reservation] = ()
    _matching: dict[tuple[str, str, str], tuple[Limit, ...]] = field(default_factory=dict)
    _billed: dict[tuple[str, str], ApiKey] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Records) -> Directory:
        return cls(
            records.revision,
            PriceBook(records.prices),
            {key.key_id: key for key in records.keys},
            {tenant.id: tenant for tenant in records.tenants},
            {(member.team, member.person): member.role for member in records.members},
            (*records.limits, *_wallets(records)),
            tuple(records.reservations),
        )

    def find(self, key_id: str) -> ApiKey | None:
        """The key of that id, whatever became of it."""
        return self.keys.get(key_id)

    def billed_to(self, key: ApiKey, team: str) -> ApiKey:
        """The key as one of that team. Raises PermissionDenied unless it may bill it."""
        if team == key.tenant:
            return key
        billed = self._billed.get((key.key_id, team))
        if billed is not None and billed.digest == key.digest:
            return billed
        role = self._roles.get((team, key.tenant))
        if role is None:
            raise PermissionDenied(
                "The key's owner is not a member of the team in X-Prime-Team-ID.",
                param="X-Prime-Team-ID",
            )
        if not role.may_bill:
            raise PermissionDenied(
                f"A {role} of the team may not bill it.", param="X-Prime-Team-ID"
            )
        billed = self._billed[key.key_id, team] = replace(key, tenant=team)
        return billed

    def limits(self, key_id: str, tenant: str, model: str) -> tuple[Limit, ...]:
        """Every limit that counts a request of that key, tenant and model."""
        if not self._limits:
            return ()
        wanted = (key_id, tenant, model)
        found = self._matching.get(wanted)
        if found is None:
            if len(self._matching) >= MOST_CACHED:
                self._matching.clear()
            found = self._matching[wanted] = tuple(
                limit for limit in self._limits if limit.matches(*wanted)
            )
        return found

    def reserved(self, tenant: str, model: str, now: float) -> tuple[Reservation, ...]:
        """The reservations that are active for a request of that tenant, for that model."""
        if not self.reservations:
            return ()
        return tuple(
            each
            for each in self.reservations
            if each.tenant == tenant and each.model == model and each.state(now) is State.ACTIVE
        )


def _wallets(records: Records) -> Iterable[Limit]:
    return (
        wallet_limit(tenant.id, records.paid.get(tenant.id, 0), tenant.payment_changes)
        for tenant in records.tenants
        if tenant.payment == "prepaid"
    )


def check_endpoint(key: ApiKey, endpoint: str) -> None:
    """Raises PermissionDenied, naming the endpoints that the key may be used for."""
    scope = key.scope
    if scope is not None and scope.routes and endpoint not in scope.routes:
        raise PermissionDenied(f"This key is for {_listed(scope.routes)}, not for /{endpoint}.")


def check_model(key: ApiKey, model: str) -> None:
    """Raises PermissionDenied, naming the models that the key may be used for."""
    scope = key.scope
    if scope is not None and scope.models and model not in scope.models:
        raise PermissionDenied(
            f"This key is for {_listed(scope.models)}, not for {model}.", param="model"
        )


def check_peer(key: ApiKey, peer: str) -> None:
    """Raises PermissionDenied unless the key may be used from that address."""
    scope = key.scope
    if scope is not None and scope.networks and not _within(peer, scope.networks):
        raise PermissionDenied("This key may not be used from this address.")


def _within(peer: str, networks: Iterable[str]) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:  # a Unix socket has no address
        return False
    return any(address in ipaddress.ip_network(network) for network in networks)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
