-- wrk: POST one fixed body over and over; print what was measured as one line of JSON.
local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["content-type"] = "application/json"
file:close()
local key = os.getenv("BENCH_API_KEY")
if key then
  wrk.headers["authorization"] = "Bearer " .. key
end

function done(summary, latency, requests)
  local failed = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"p50_ms":%.4f,"p90_ms":%.4f,"p99_ms":%.4f,"errors":%d}\n',
    summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(99) / 1e3,
    failed.connect + failed.read + failed.write + failed.status + failed.timeout))
end
