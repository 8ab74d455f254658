"""Teams, people, and who is a member of what, in the admin API."""

from __future__ import annotations

from prime_inference.accounts.directory import Records
from prime_inference.control.account_operations import AccountOperations
from prime_inference.control.calls import Call, Routes, new_id
from prime_inference.control.requests import NewTenant, SetMember, SetPayment
from prime_inference.domain.accounts import Tenant, TenantKind
from prime_inference.domain.moments import iso


class TenantOperations(AccountOperations):
    def routes(self) -> Routes:
        return {
            ("GET", "teams"): self.teams,
            ("POST", "teams"): self.add_team,
            ("GET", "people"): self.people,
            ("POST", "people"): self.add_person,
            ("PUT", "tenants/([^/]+)/payment"): self.set_payment,
            ("GET", "teams/([^/]+)/members"): self.members,
            ("PUT", "teams/([^/]+)/members/([^/]+)"): self.set_member,
            ("DELETE", "teams/([^/]+)/members/([^/]+)"): self.remove_member,
        }

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
        payment = call.decode(SetPayment).payment
        self._accounts.set_payment(tenant, payment, call.actor, self._now())
        return {"tenant": tenant, "payment": payment}

    def members(self, call: Call) -> object:
        team = call.parts[0]
        self._names().require_tenant(team, "team")
        records: Records = self._accounts.load()
        names = {tenant.id: tenant.name for tenant in records.tenants}
        found = [
            {"userId": member.person, "name": names[member.person], "role": str(member.role)}
            for member in records.members
            if member.team == team
        ]
        return {"members": found, "total_count": len(found)}

    def set_member(self, call: Call) -> object:
        team, person = call.parts
        role = call.decode(SetMember).role
        names = self._names()
        names.require_tenant(team, "team")
        names.require_tenant(person, "person")
        self._accounts.set_member(team, person, role, call.actor, self._now())
        return {"teamId": team, "userId": person, "role": str(role)}

    def remove_member(self, call: Call) -> object:
        team, person = call.parts
        self._accounts.remove_member(team, person, call.actor, self._now())
        return {"teamId": team, "userId": person}

    def _tenants(self, kind: TenantKind) -> object:
        found = [tenant for tenant in self._accounts.load().tenants if tenant.kind == kind]
        name = "teams" if kind == "team" else "people"
        return {name: [_tenant_object(tenant) for tenant in found], "total_count": len(found)}

    def _add_tenant(self, call: Call, kind: TenantKind) -> object:
        wanted = call.decode(NewTenant)
        prefix = "team" if kind == "team" else "user"
        tenant = Tenant(new_id(prefix), kind, wanted.name, wanted.slug, self._now())
        answer = _tenant_object(tenant)
        self._accounts.add_tenant(tenant, call.actor)
        return answer


def _tenant_object(tenant: Tenant) -> dict[str, object]:
    name = "teamId" if tenant.kind == "team" else "userId"
    return {
        name: tenant.id,
        "name": tenant.name,
        "slug": tenant.slug,
        "createdAt": iso(tenant.created_at),
        "payment": tenant.payment,
    }
