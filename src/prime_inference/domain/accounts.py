"""Who pays: teams and people, and who may spend for a team."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

TenantKind = Literal["team", "person"]
Payment = Literal["invoiced", "prepaid"]
"""Afterwards; or what was paid in before is all that can be spent."""


class Role(enum.StrEnum):
    """What a person is in a team."""

    OWNER = "owner"  # everything
    ADMIN = "admin"  # keys, limits, members
    MEMBER = "member"  # may bill the team
    VIEWER = "viewer"  # may look at its usage, and bill nothing

    @property
    def may_bill(self) -> bool:
        return self is not Role.VIEWER


@dataclass(frozen=True, slots=True)
class Tenant:
    """A team, or a person's own account."""

    id: str
    kind: TenantKind
    name: str
    slug: str
    created_at: float  # seconds since the epoch
    payment: Payment = "invoiced"
    payment_changes: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    team: str
    person: str
    role: Role
