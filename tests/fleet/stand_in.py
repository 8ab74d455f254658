"""Stands in for `python -m dynamo.frontend` and `dynamo.mocker`, which `make test` has not.

Knows what the launcher relies on: command lines, discovery in a folder, readiness by model,
SIGTERM; and for the fleet's gateway. What Dynamo really does is tested in tests/dynamo. Those that
the file `broken` beside the interpreter names die as soon as they are started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def interpreter(folder: Path) -> str:
    """An executable that takes the place of the interpreter that has Dynamo."""
    script = folder / "python"
    broken = f'BROKEN="{folder}/broken" exec'
    script.write_text(f'#!/bin/sh\n{broken} {sys.executable} -S {__file__} "$@"\n')
    script.chmod(0o755)
    return str(script)


def break_processes(folder: Path, *names: str) -> None:
    """Have those named DEPLOYMENT/PROCESS die whenever they are started; without names none."""
    draft = folder / "broken.new"
    draft.write_text("\n".join(names))
    draft.replace(folder / "broken")


def die_if_broken() -> None:
    broken = Path(os.environ["BROKEN"])
    if broken.exists() and os.environ["PRIME_FLEET_PROCESS"] in broken.read_text().splitlines():
        print("\x1b[32mloading\x1b[0m", flush=True)
        sys.exit("error: unrecognized arguments: --nope")


def main() -> None:
    die_if_broken()
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("-m", "--http-port", "--model-name", "--disaggregation-mode", "--state-dir"):
        parser.add_argument(flag)
    parser.add_argument("--control-port", type=int)
    options, _ = parser.parse_known_args()
    if options.m == "prime_inference.cli":
        be_gateway(Path(options.state_dir), options.control_port)
    discovery = Path(os.environ["DYN_FILE_KV"])
    if options.m == "dynamo.frontend":
        port = int(options.http_port)
    else:
        port = int(os.environ["DYN_SYSTEM_PORT"])
        mine = discovery / f"{options.disaggregation_mode or 'aggregated'}.{os.getpid()}"
        mine.write_text(options.model_name)

        def leave(*_: object) -> None:
            mine.unlink()
            os._exit(0)

        signal.signal(signal.SIGTERM, leave)
        # as vLLM's engine core does, it would outlive us
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"ok"
            if self.path.endswith("/ready"):
                body = readiness(discovery)
            if self.path == "/metrics":
                in_flight = discovery / "in-flight"
                count = in_flight.read_text() if in_flight.exists() else "0"
                body = f'dynamo_frontend_inflight_requests{{model="m"}} {count}\n'.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    print("listening", port, flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def be_gateway(folder: Path, port: int) -> None:
    """The fleet's gateway, as far as the launcher looks at it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    folder.mkdir(exist_ok=True)
    (folder / "endpoint.json").write_text(json.dumps({"pid": os.getpid()}))
    server.serve_forever()


def readiness(discovery: Path) -> bytes:
    alive = [
        role
        for role, _, pid in (file.name.partition(".") for file in discovery.iterdir())
        if pid.isdigit() and Path(f"/proc/{pid}/exe").exists()  # gone for a zombie
    ]
    types = {role: {"workers": count} for role, count in Counter(alive).items()}
    ready = {"ready": len(types) == 2, "namespaces": {"dynamo": {"worker_types": types}}}
    return json.dumps(ready).encode()


if __name__ == "__main__":
    main()
