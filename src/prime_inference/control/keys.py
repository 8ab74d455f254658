"""API keys in the admin API: made, rotated, revoked."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

from prime_inference.accounts.directory import Records
from prime_inference.control.account_operations import AccountOperations
from prime_inference.control.calls import Call, Routes, iso_or_none, new_id
from prime_inference.control.requests import NewKey, RotateKey
from prime_inference.domain import keys as api_keys
from prime_inference.domain.errors import NotFound
from prime_inference.domain.keys import ApiKey, Scope
from prime_inference.domain.limits import Limit, LimitKind
from prime_inference.domain.money import nanodollars


class KeyOperations(AccountOperations):
    def routes(self) -> Routes:
        return {
            ("GET", "keys"): self.list,
            ("POST", "keys"): self.create,
            ("POST", "keys/([^/]+)/rotate"): self.rotate,
            ("POST", "keys/([^/]+)/revoke"): self.revoke,
        }

    def list(self, call: Call) -> object:
        tenant = call.query.get("tenant")
        if tenant is not None:
            self._names().require_tenant(tenant)
        found = [key for key in self._accounts.load().keys if tenant in (None, key.tenant)]
        return {"keys": [_key_object(key) for key in found], "total_count": len(found)}

    def create(self, call: Call) -> object:
        wanted = call.decode(NewKey)
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
        key = replace(key, expires_at=None if lasts is None else now + lasts, scope=scope)
        answer = {**_key_object(key), "key": text}
        if cap is not None:  # first: a key must not be usable before its cap is there
            limit = Limit(new_id("lim"), LimitKind.BUDGET_TOTAL, cap, key_id=key.key_id)
            self._accounts.add_limit(limit, call.actor, now)
        self._accounts.add_key(key, call.actor)
        return answer

    def rotate(self, call: Call) -> object:
        overlap = call.decode(RotateKey).overlap_seconds
        text, key = api_keys.rotate(
            self._live_key(call.parts[0]), now=self._now(), overlap_seconds=overlap
        )
        answer = {**_key_object(key), "key": text}
        self._accounts.replace_key(key, "key.rotate", call.actor, self._now())
        return answer

    def revoke(self, call: Call) -> object:
        key = replace(self._live_key(call.parts[0]), revoked_at=self._now())
        answer = _key_object(key)
        self._accounts.replace_key(key, "key.revoke", call.actor, self._now())
        return answer

    def _live_key(self, key_id: str) -> ApiKey:
        records: Records = self._accounts.load()
        for key in records.keys:
            if key.key_id == key_id:
                if api_keys.ended(key, self._now()):
                    raise NotFound(f"The key {key_id} was revoked or has expired.")
                return key
        self._names().require_key(key_id)
        raise NotFound(f"The key {key_id} is this machine's own, not an account's.")


def _key_object(key: ApiKey) -> dict[str, object]:
    scope = key.scope or Scope()
    return {
        "id": key.key_id,
        "tenant": key.tenant,
        "name": key.name,
        "last_four": key.last_four,
        "created_at": iso_or_none(key.created_at),
        "expires_at": iso_or_none(key.expires_at),
        "revoked_at": iso_or_none(key.revoked_at),
        "earlier_texts": [
            {"last_four": each.last_four, "until": iso_or_none(each.until)} for each in key.earlier
        ],
        "models": sorted(scope.models),
        "endpoints": sorted(scope.routes),
        "networks": sorted(scope.networks),
    }
