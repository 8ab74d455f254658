"""nginx from the machine: as the fastest upstream there is, and as a subject."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

COMMON = """\
daemon off;
master_process off;
worker_processes 1;
error_log stderr error;
pid {folder}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_timeout 3600s;
  keepalive_requests 1000000000;
  tcp_nodelay on;
{server}
}}
"""

FIXED = """\
  default_type application/json;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /health {{ return 200 ''; }}
    location = /v1/models {{ return 200 '{models}'; }}
    location / {{ return 200 '{answer}'; }}
  }}"""

PROXY = """\
  upstream engine {{ server {upstream}; keepalive 1024; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header connection "";
      proxy_buffering off;
    }}
  }}"""


def missing() -> str | None:
    """Why nginx cannot be used here."""
    return None if shutil.which("nginx") else "nginx is not installed"


def version() -> str:
    """Of the nginx on the path."""
    finished = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False)
    return finished.stderr.strip().rpartition("/")[2]


def fixed_answer(folder: Path, port: int, answer: str, models: str) -> list[str | Path]:
    """The command of a server that answers every request with `answer`.

    Raises ValueError for an answer that cannot be quoted in the configuration.
    """
    if any(mark in answer + models for mark in "'$\\"):
        raise ValueError("the answer holds a quote, a dollar sign or a backslash")
    return _command(folder, FIXED.format(port=port, answer=answer, models=models))


def proxy(folder: Path, port: int, upstream: str) -> list[str | Path]:
    """The command of a server that passes everything on to `upstream`, a host:port."""
    return _command(folder, PROXY.format(port=port, upstream=upstream))


def _command(folder: Path, server: str) -> list[str | Path]:
    configuration = folder / "nginx.conf"
    configuration.write_text(COMMON.format(folder=folder, server=server))
    return ["nginx", "-p", folder, "-c", configuration]
