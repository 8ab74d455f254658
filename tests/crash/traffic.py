"""Who asks for what in a campaign, and what is owed for it: reckoned here, by no code of ours."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor

from prime_inference.domain.generation import Outcome
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.limits import MOST_AMOUNT, Limit, LimitKind
from prime_inference.domain.models import Model
from prime_inference.domain.pools import FLEX, SERVERLESS
from prime_inference.domain.prices import Price
from prime_inference.domain.reservations import Period, Reservation
from prime_inference.domain.usage import Usage
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.gateway.operations import Operation, chat_operation
from prime_inference.wire.openai.bounds import SchemaBounds
from prime_inference.wire.openai.chat_request import decode_chat_request

MODEL = Model("acme/echo-1", "r1", 0, 131_072, 131_072)
PRICE = Price(
    model=MODEL.id,
    version=1,
    effective_from=0.0,
    prompt=1_500_000,
    cached_prompt=100_000,
    completion=2_000_001,
    reasoning=2_000_001,
    batch_discount=3_333,
)
DAY_S = 86_400
HOUR_S = 3_600
LIVES_IN_A_PERIOD = 4
START = 1_800_000_000.0
FIRST_TOKEN_S, DURATION_S = 0.125, 1.0
TENANTS = ("team-0", "team-1", "team-2")
RESERVATION = Reservation(
    id="res_1",
    tenant=TENANTS[0],
    model=MODEL.id,
    slots=4,
    starts_at=START,
    price=12_345_678_901,
    period=Period.HOUR,
    created_at=START,
    token_discount=2_500,
    tokens_per_second=1_000_000,
)
BUDGETS = [
    Limit(f"budget:{tenant}", LimitKind.BUDGET_TOTAL, MOST_AMOUNT, tenant=tenant)
    for tenant in TENANTS
]
BUCKET = Limit(
    RESERVATION.pool, LimitKind.RESERVED_OUTPUT, 60_000_000, tenant=TENANTS[0], model=MODEL.id
)
LIMITS = [*BUDGETS, BUCKET]
PAID = {
    SERVERLESS: Fraction(1),
    FLEX: Fraction(6_667, 10_000),
    RESERVATION.pool: Fraction(7_500, 10_000),
}


def _operation(more: bytes) -> Operation:
    text = b'{"model": "acme/echo-1", "messages": [{"role": "user", "content": "Hi"}]%b}'
    return chat_operation(decode_chat_request(text % more, SchemaBounds()))


PLAIN, CHEAP = _operation(b', "stream": true'), _operation(b', "service_tier": "flex"')


@dataclass(frozen=True, slots=True)
class Request:
    """Each of another size, over tenants, keys, days, pools and ways to end.

    A life that begins a number begins it under an id of its own. Every fifth is flex, also of the
    team with a reservation; of the team's others every second finds a reserved slot.
    """

    number: int
    life: int

    @property
    def id(self) -> str:
        return f"{self.number}.{self.life}"

    @property
    def tenant(self) -> str:
        return TENANTS[self.number % 3]

    @property
    def key(self) -> ApiKey:
        return ApiKey(f"key-{self.number % 7}", self.tenant, b"", 0.0)

    @property
    def pool(self) -> str:
        if self.number % 5 == 0:
            return FLEX
        return RESERVATION.pool if self.number % 6 == 0 else SERVERLESS

    @property
    def operation(self) -> Operation:
        return CHEAP if self.pool == FLEX else PLAIN

    @property
    def outcome(self) -> Outcome:
        return "cancelled" if self.number % 7 == 0 else "complete"

    @property
    def usage(self) -> Usage:
        return Usage(self.number % 1000 + 1, self.number % 77 + 1, source="upstream")

    @property
    def started_at(self) -> float:
        return START + DAY_S * (self.number % 4)

    @property
    def owed(self) -> int:
        """Nanodollars, half up."""
        picodollars = (self.number % 1000 + 1) * 1_500_000 + (self.number % 77 + 1) * 2_000_001
        return floor(picodollars * PAID[self.pool] / 1_000 + Fraction(1, 2))

    @property
    def event(self) -> UsageEvent:
        """What the ledger is to have of it."""
        return UsageEvent(
            tenant=self.tenant,
            generation=self.id,
            kind="usage",
            key_id=self.key.key_id,
            model=MODEL.id,
            deployment="engine-0",
            pool=self.pool,
            route="chat/completions",
            outcome=self.outcome,
            streamed=self.pool != FLEX,
            price_version=1,
            prompt_tokens=self.number % 1000 + 1,
            cached_tokens=0,
            completion_tokens=self.number % 77 + 1,
            reasoning_tokens=0,
            cost=self.owed,
            at=int(self.started_at) * 1_000_000,
            first_token_us=125_000,
            duration_us=1_000_000,
        )


def life_began(life: int) -> float:
    """When a life begins: in every fourth another period of the reservation is due."""
    return START + HOUR_S / LIVES_IN_A_PERIOD * (life - 1)
