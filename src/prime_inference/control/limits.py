"""Limits in the admin API: made, listed, removed."""

from __future__ import annotations

from prime_inference.control.account_operations import AccountOperations
from prime_inference.control.calls import Call, Routes, new_id
from prime_inference.control.requests import NewLimit
from prime_inference.domain.errors import InvalidRequest
from prime_inference.domain.limits import Limit, LimitKind
from prime_inference.domain.money import nanodollars
from prime_inference.gateway.account_api import limit_object

DERIVED = {
    LimitKind.WALLET: "A wallet's limit is what was paid in: PUT /tenants/<id>/payment.",
    LimitKind.RESERVED_OUTPUT: "It is a reservation's 'tokens_per_second': POST /reservations.",
}
"""Limits that nobody sets, and what they follow from."""


class LimitOperations(AccountOperations):
    def routes(self) -> Routes:
        return {
            ("GET", "limits"): self.list,
            ("POST", "limits"): self.add,
            ("DELETE", "limits/([^/]+)"): self.remove,
        }

    def list(self, call: Call) -> object:
        found = self._accounts.load().limits
        return {"limits": [limit_object(limit, self._now()) for limit in found]}

    def add(self, call: Call) -> object:
        wanted = call.decode(NewLimit)
        if wanted.kind.is_derived:
            raise InvalidRequest(DERIVED[wanted.kind], param="kind")
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
        limit = Limit(new_id("lim"), wanted.kind, most, wanted.key, wanted.tenant, wanted.model)
        answer = limit_object(limit, self._now())
        self._accounts.add_limit(limit, call.actor, self._now())
        return answer

    def remove(self, call: Call) -> object:
        self._accounts.remove_limit(call.parts[0], call.actor, self._now())
        return {"id": call.parts[0]}
