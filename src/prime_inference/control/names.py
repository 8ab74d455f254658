"""Names in requests of the admin API: a mistyped one would be a limit or a price of nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prime_inference.accounts.directory import Records
from prime_inference.domain.errors import InvalidRequest, ModelNotFound, NotFound
from prime_inference.domain.keys import ENDPOINTS
from prime_inference.domain.suggestions import did_you_mean, nearest


class Names:
    """What there is at this moment. `models` are the catalogue's; `own_key` knows the keys that
    this machine's file holds.
    """

    def __init__(
        self,
        records: Records,
        models: Iterable[str],
        own_key: Callable[[str], object] = lambda key_id: None,
    ) -> None:
        self._records = records
        self._models = {*models, *(price.model for price in records.prices)}
        self._own_key = own_key

    def require_tenant(self, tenant: str, param: str = "tenant") -> None:
        """Raises NotFound, with the ids of those called alike."""
        called = {
            name: each.id
            for each in self._records.tenants
            for name in (each.name, each.slug, each.id)
        }
        if tenant not in {each.id for each in self._records.tenants}:
            raise NotFound(f"There is no tenant {tenant}.{_ids(tenant, called)}", param=param)

    def require_key(self, key_id: str, param: str = "key") -> None:
        """Raises NotFound, with the ids of those called alike."""
        called = {
            name: each.key_id for each in self._records.keys for name in (each.name, each.key_id)
        }
        if key_id not in called.values() and self._own_key(key_id) is None:
            raise NotFound(f"There is no key {key_id}.{_ids(key_id, called)}", param=param)

    def require_models(
        self, models: Iterable[str], *, to_come: bool = False, param: str = "model"
    ) -> None:
        """Raises ModelNotFound, with the nearest, unless the models are `to_come`."""
        for model in models:
            if model not in self._models and not to_come:
                raise ModelNotFound(
                    f"There is no model {model}.{did_you_mean(model, self._models)} For a model"
                    " that is to come send 'new_model': true (--new-model).",
                    param=param,
                )

    @staticmethod
    def require_endpoints(endpoints: Iterable[str]) -> None:
        """Raises InvalidRequest, with those that there are."""
        for endpoint in endpoints:
            if endpoint not in ENDPOINTS:
                raise InvalidRequest(
                    f"There is no endpoint {endpoint}.{did_you_mean(endpoint, ENDPOINTS)}"
                    f" A key is for some of {', '.join(sorted(ENDPOINTS))}.",
                    param="endpoints",
                )


def _ids(name: str, called: Mapping[str, str]) -> str:
    """The ids of what is called like that, each with what it is called."""
    found = {called[each]: each for each in nearest(name, called)}
    shown = [one if one == each else f"{one} ({each})" for one, each in found.items()]
    return f" Did you mean {', '.join(shown)}?" if shown else ""
