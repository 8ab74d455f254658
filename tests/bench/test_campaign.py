import msgspec
import pytest

from prime_inference.bench.gateway import campaign
from prime_inference.bench.gateway.results import Settings, errors
from prime_inference.bench.gateway.subjects import DIRECT, OURS, LiteLlm

TINY = Settings(
    rounds=1, load_seconds=1, stream_seconds=0.2, stream_rounds=1,
    connections=(1, 4), pace_ms=2.0, latency_streams=4, first_streams=2, most_streams=4,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_campaign_measures_who_is_there_and_names_who_is_not():
    said: list[str] = []
    absent = LiteLlm("no-such-environment", "litellm")
    results = campaign.run([DIRECT, OURS, absent], TINY, said.append)
    assert results.subjects == [DIRECT.name, OURS.name]
    assert list(results.left_out) == [absent.name]
    assert errors(results, OURS.name) == 0
    assert len(results.whole) == 2 * len(TINY.connections)
    assert all(streams.load.lost == streams.load.errors == 0 for streams in results.latency)
    assert results.memory[OURS.name].after_streams_mib is not None
    assert results.accounts is not None
    assert min(results.accounts.billed_us, results.accounts.shipped_per_second) > 0
    assert set(results.most) == {DIRECT.name, OURS.name}
    assert msgspec.json.decode(msgspec.json.encode(results), type=type(results)) == results
