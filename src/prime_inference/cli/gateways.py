"""Which gateways an operator's command is for, and telling all of them the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_inference.cli.control_client import ControlAddress, ControlClient, control_address
from prime_inference.cli.failures import CommandFailed, GatewaysFailed, WrongUsage
from prime_inference.cli.terminal import Terminal

View = dict[str, Any]
Ask = Callable[[ControlClient], View]


@dataclass(frozen=True, slots=True)
class Report:
    """What one gateway answered: its fleet afterwards, or why not."""

    url: str
    view: View | None = None
    failure: CommandFailed | None = None

    def as_json(self) -> dict[str, object]:
        said = {"fleet": self.view} if self.failure is None else {"error": self.failure.as_json()}
        return {"control_url": self.url, **said}


def addresses(
    urls: Sequence[str], folders: Sequence[Path], environment: Mapping[str, str]
) -> list[ControlAddress]:
    """The gateways that are meant. Raises NothingAnswers, NoApiKey, WrongUsage.

    By URLs: those given, else PRIME_CONTROL_URLS, else PRIME_CONTROL_URL; else by the folders
    of gateways on this machine. Of folders and keys there is one for all, or one for each URL.
    """
    urls = (
        urls
        or _words(environment.get("PRIME_CONTROL_URLS"))
        or _words(environment.get("PRIME_CONTROL_URL"))
    )
    if not urls:
        return [control_address(None, folder) for folder in (folders or (None,))]
    keys = _words(environment.get("PRIME_CONTROL_KEY"))
    each_folder = _one_for_each("--state-dir", folders, urls)
    each_key = _one_for_each("PRIME_CONTROL_KEY", keys, urls)
    return [
        control_address(url, folder, key or "")
        for url, folder, key in zip(urls, each_folder, each_key, strict=True)
    ]


def tell_all(gateways: Sequence[ControlAddress], ask: Ask) -> list[Report]:
    """Ask all of them at the same time: one that hangs keeps nobody else waiting."""
    reports = [Report(address.url) for address in gateways]

    def tell(number: int) -> None:
        address = gateways[number]
        try:
            with ControlClient(address) as client:
                reports[number] = Report(address.url, view=ask(client))
        except CommandFailed as failure:
            reports[number] = Report(address.url, failure=failure)

    # daemons: Ctrl-C ends the command, whatever they wait for
    threads = [threading.Thread(target=tell, args=(n,), daemon=True) for n in range(len(reports))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reports


def show(
    reports: Sequence[Report], done: Callable[[View], str], output: str, *, plain: bool
) -> None:
    """What each has done, in the words of `done`. Raises CommandFailed if one has not."""
    terminal = Terminal(plain=plain)
    failed = [report for report in reports if report.failure is not None]
    if len(reports) == 1:
        (report,) = reports
        if report.failure is not None:
            raise report.failure
        assert report.view is not None
        terminal.json(report.view) if output == "json" else terminal.success(done(report.view))
        return
    if output == "json":
        terminal.json({"gateways": [report.as_json() for report in reports]})
    else:
        for report in reports:
            if report.view is not None:
                terminal.success(f"{report.url}: {done(report.view)}")
    if failed:
        reasons = " ".join(f"{one.url}: {one.failure}" for one in failed)
        raise GatewaysFailed(
            f"{len(failed)} of {len(reports)} gateways have not done it. {reasons}",
            hint="Name those alone, with --control-url, to tell them again.",
        )


def _words(text: str | None) -> list[str]:
    return (text or "").replace(",", " ").split()


def _one_for_each(name: str, given: Sequence[Any], urls: Sequence[str]) -> Sequence[Any]:
    """Raises WrongUsage."""
    if len(given) in (0, 1):
        return [given[0] if given else None] * len(urls)
    if len(given) != len(urls):
        raise WrongUsage(
            f"{name} has {len(given)} values for {len(urls)} gateways: give one, or one for each."
        )
    return given
