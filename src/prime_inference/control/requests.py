"""Bodies of the admin API: closed types, money as decimal text in dollars."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from prime_inference.domain.accounts import Payment, Role
from prime_inference.domain.limits import LimitKind

ON_ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z"
"""No control characters, nor what reverses the text around it: it is shown in terminals, and
Postgres holds no NUL."""

Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=ON_ONE_LINE)]
Id = Annotated[str, Meta(min_length=1, max_length=100, pattern=ON_ONE_LINE)]
Slug = Annotated[str, Meta(pattern=r"^[a-z0-9](-?[a-z0-9]){0,59}\Z")]
Usd = Annotated[str, Meta(min_length=1, max_length=40)]
Seconds = Annotated[float, Meta(ge=0, le=10 * 366 * 86_400)]
Names = Annotated[list[Id], Meta(max_length=100)]


class NewTenant(Struct, forbid_unknown_fields=True):
    """A team or a person."""

    name: Name
    slug: Slug


class SetPayment(Struct, forbid_unknown_fields=True):
    payment: Payment


class SetMember(Struct, forbid_unknown_fields=True):
    role: Role


class NewKey(Struct, forbid_unknown_fields=True):
    tenant: Id
    name: Name
    expires_in_seconds: Seconds | None = None
    models: Names = []
    endpoints: Names = []  # e.g. chat/completions
    networks: Names = []  # e.g. 10.0.0.0/8
    spend_cap_usd: Usd | None = None
    new_model: bool = False  # its models are to come


class RotateKey(Struct, forbid_unknown_fields=True):
    overlap_seconds: Seconds = 86_400.0  # a day: whoever deploys once a day is never locked out


class NewLimit(Struct, forbid_unknown_fields=True):
    """`most` is a count, `most_usd` an amount for budgets: one of the two."""

    kind: LimitKind
    most: Annotated[int, Meta(ge=0)] | None = None
    most_usd: Usd | None = None
    key: Id | None = None
    tenant: Id | None = None
    model: Id | None = None
    new_model: bool = False  # the model is to come


class NewPrice(Struct, forbid_unknown_fields=True):
    """Dollars per million tokens, `request` dollars per thousand requests."""

    model: Id
    prompt: Usd
    completion: Usd
    cached_prompt: Usd | None = None  # None: as prompt
    reasoning: Usd | None = None  # None: as completion
    request: Usd = "0"
    batch_discount_percent: Annotated[float, Meta(ge=0, le=100)] = 0.0
    effective_from: str | None = None  # ISO 8601; None: now
    confirm: bool = False  # set it although it looks wrong
    new_model: bool = False  # the model is to come


class NewTransfer(Struct, forbid_unknown_fields=True):
    """A credit or an adjustment; `reference` makes a repetition harmless."""

    tenant: Id
    amount_usd: Usd
    reference: Id
    memo: Annotated[str, Meta(max_length=500, pattern=ON_ONE_LINE)] = ""
    about: Annotated[str, Meta(max_length=100, pattern=ON_ONE_LINE)] = (
        ""  # the generation that is adjusted
    )
