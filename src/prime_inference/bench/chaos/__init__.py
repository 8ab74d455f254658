"""Chaos on real processes: gateways, engines and Redis killed, frozen and restarted at random.

`make chaos` runs it for two minutes. The rules, which are all a client needs to know:

- Whoever gets no connection to a gateway is sent to the next one, as a load balancer does.
  Nothing else is repeated for it.
- A typed 429 or 503 with `Retry-After` is obeyed and asked again at most twice, as OpenAI's
  SDKs do; those refusals are counted.
- A burst wants more than all slots together: for 6 s after it typed refusals are right.
- A request in the hands of a gateway that is killed is lost, and must look lost.
- At every moment at least one gateway and one deployment are neither down nor frozen.

Every other request has to be answered, whole, with the text that is known beforehand.
"""
