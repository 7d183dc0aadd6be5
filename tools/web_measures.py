"""Measure the web UI: bytes transferred, time until it is painted, and memory while it is left open.

python tools/web_measures.py [--gpus 1000 --jobs 10000] [--events 5000]     with a service that imitates the daemon
python tools/web_measures.py --daemon [--jobs 10000] [--minutes 20]         with `refold serve` on CPU slots
python tools/web_measures.py --recording 100000                             a journal with so many entries
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from fake_service import OWNER, serve  # noqa: E402
from journals import start, step, submitted, write_entries  # noqa: E402
from served_daemon import ServedDaemon  # noqa: E402
from web_browser import open_browser, sign_in  # noqa: E402
from web_demo import DemoService  # noqa: E402

from refold.client.address import read_address  # noqa: E402
from refold.client.api.submissions import Submission  # noqa: E402
from refold.client.api.wire import Event  # noqa: E402
from refold.client.client import Client  # noqa: E402
from refold.core import Entry, Header, RunFinished  # noqa: E402
from refold.testing import make_cluster, make_job  # noqa: E402

WATCH = """() => {
  const look = () => {
    const canvas = document.querySelector('canvas');
    if (canvas?.style.height && document.querySelector('.vt-row .job-link')) window.shownAt = performance.now();
    else requestAnimationFrame(look);
  };
  look();
}"""
TIMES = (
    """() => ({paint: performance.getEntriesByName('first-contentful-paint')[0].startTime, shown: window.shownAt})"""
)
SLIDE = """async () => {
  const slider = document.querySelector('.time-bar input');
  const found = [];
  for (let position = 500; position < 10000; position += 500) {
    const begun = performance.now();
    slider.value = String(position);
    slider.dispatchEvent(new Event('input'));
    await new Promise((resolve) => setTimeout(resolve));
    await new Promise((resolve) => requestAnimationFrame(resolve));
    found.push((performance.now() - begun) / 1000);
  }
  return found;
}"""
SLOTS = 8
ACTIVE_JOBS = 40
SAMPLE_SECONDS = 30.0
BATCH = 500


def measure_load(page: Any, address: str) -> tuple[float, float, int]:
    """Load the overview without a cache; return seconds to the first paint and to the queue, and bytes transferred."""
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.send("Network.setCacheDisabled", {"cacheDisabled": True})
    received: list[int] = []
    network.on("Network.loadingFinished", lambda event: received.append(round(event["encodedDataLength"])))
    page.goto("about:blank")
    page.goto(address)
    while not page.evaluate("Boolean(window.shownAt)"):
        page.wait_for_timeout(50)
    times = page.evaluate(TIMES)
    page.wait_for_load_state("load")
    page.wait_for_timeout(500)
    network.detach()
    return times["paint"] / 1000, times["shown"] / 1000, sum(received)


def print_loads(page: Any, address: str, repeat: int) -> None:
    """Load the overview several times; print the figures."""
    page.add_init_script(f"({WATCH})()")
    loads = [measure_load(page, address) for _ in range(repeat)]
    for number, name in enumerate(("first paint, s", "queue and map shown, s", "bytes transferred")):
        print_values(name, [load[number] for load in loads])


def print_values(name: str, values: list[float]) -> None:
    """Print the median and the largest."""
    print(f"{name}: median {statistics.median(values):,.2f}, largest {max(values):,.2f}", flush=True)


def read_metrics(page: Any) -> tuple[float, int, int]:
    """Return the memory of the page's scripts in MB, DOM nodes and event listeners, after garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return metrics["JSHeapUsedSize"] / 1e6, round(metrics["Nodes"]), round(metrics["JSEventListeners"])


def new_page(browser: Any) -> Any:
    """Return a page of a desktop's size."""
    return browser.new_context(viewport={"width": 1440, "height": 900}).new_page()


def measure_imitation(options: argparse.Namespace) -> None:
    """Measure with a service that imitates the daemon."""
    service = DemoService(options.gpus, options.jobs)
    with serve(service) as server, open_browser() as browser:
        page = new_page(browser)
        sign_in(page, server.address, OWNER)
        print_loads(page, server.address, options.repeat)
        before = read_metrics(page)[0]
        for first in range(0, options.events, 100):
            numbers = range(service.event_stream.last + 1, service.event_stream.last + 101)
            events = [Event(number, service.now, "note", "resnet-1", 1, "step") for number in numbers]
            server.call(service.event_stream.publish, events)
            page.wait_for_timeout(200)
            if first % 1000 == 0:
                print(f"heap after {first:,} events: {read_metrics(page)[0]:.1f} MB")
        print(f"heap before: {before:.1f} MB, after {options.events:,} events: {read_metrics(page)[0]:.1f} MB")


@contextmanager
def run_daemon() -> Iterator[tuple[str, str, Client]]:
    """Run `refold serve` on CPU slots; yield its address, the owner's token and a client."""
    with TemporaryDirectory(prefix="refold-web-") as name:
        folder = Path(name)
        daemon = ServedDaemon(folder / "state", folder / "log", ["--slots", str(SLOTS)], os.environ)
        daemon.launch()
        try:
            while not daemon.is_serving:
                if daemon.has_ended:
                    raise SystemExit(daemon.log())
                time.sleep(0.1)
            found = read_address(daemon.folder)
            assert found is not None
            with daemon.client() as client:
                yield found.address, found.token, client
        finally:
            daemon.kill()


def measure_daemon(options: argparse.Namespace) -> None:
    """Measure with a real daemon: loads with a long queue, then memory while jobs come and go."""
    with run_daemon() as (address, token, client), open_browser() as browser:
        page = new_page(browser)
        sign_in(page, address, token)
        if options.minutes:
            leave_open(page, client, options.minutes)
            return
        for first in range(0, options.jobs, BATCH):
            numbers = range(first, min(first + BATCH, options.jobs))
            client.submit_all([Submission(f"job-{number}", ["sleep", "3600"]) for number in numbers])
        print(f"waiting jobs: {client.info().waiting:,}")
        print_loads(page, address, options.repeat)


def leave_open(page: Any, client: Client, minutes: float) -> None:
    """Leave the overview open while short jobs come and go; print memory, DOM nodes and listeners."""
    began, sampled, submissions = time.monotonic(), 0.0, 0
    while (now := time.monotonic() - began) < 60 * minutes + 1:
        if now >= sampled:
            heap, nodes, listeners = read_metrics(page)
            info = client.info()
            print(
                f"{now / 60:5.1f} min: heap {heap:.2f} MB, {nodes:,} DOM nodes, {listeners:,} listeners, "
                f"{submissions:,} jobs submitted, {info.last_event:,} events",
                flush=True,
            )
            sampled += SAMPLE_SECONDS if now < 120 else 4 * SAMPLE_SECONDS
        info = client.info()
        missing = ACTIVE_JOBS - info.running - info.waiting
        if missing > 0:
            client.submit_all([Submission("step", ["sleep", "4"]) for _ in range(missing)])
            submissions += missing
        page.wait_for_timeout(2000)


def make_entries(count: int, gpus: int) -> Iterator[Entry]:
    """Yield entries of jobs that run one after the other on each GPU: each is submitted and started, and ends later."""
    running: list[str] = []
    for number in range(count // 2):
        now, gpu = 20.0 * number, number % gpus
        job = make_job(f"job-{number}", at=now, tenant=f"team-{number % 5}", user=f"user-{number % 17}")
        if len(running) == gpus:
            yield step(now - 10.0, RunFinished(running.pop(0), 1))
        running.append(job.id)
        yield step(now, submitted(job), start(job.id, node=gpu // 8, gpus=(gpu % 8,)))


def measure_recording(options: argparse.Namespace) -> None:
    """Measure `refold show` on a journal with many entries."""
    with TemporaryDirectory(prefix="refold-web-") as name, open_browser() as browser:
        cluster = make_cluster(*([8] * 32))
        path = write_entries(Path(name) / "j.jsonl", Header(cluster, "fifo"), make_entries(options.recording, 256))
        began = time.monotonic()
        command = [sys.executable, "-m", "refold", "show", path, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            shown = json.loads(process.stdout.readline())
            print(f"{shown['entries']:,} entries, {shown['jobs']:,} jobs, {Path(path).stat().st_size / 1e6:.0f} MB")
            print(f"link printed after {time.monotonic() - began:.1f} s")
            page = new_page(browser)
            page.add_init_script(f"({WATCH})()")
            page.goto(shown["url"])
            while not page.evaluate("Boolean(window.shownAt)"):
                page.wait_for_timeout(50)
            print(f"map and tables shown {page.evaluate('window.shownAt') / 1000:.1f} s after the link was opened")
            print_values("slider moved to shown, s", page.evaluate(SLIDE))
            print(f"heap: {read_metrics(page)[0]:.0f} MB")
            process.terminate()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--daemon", action="store_true", help="with `refold serve` instead of an imitation")
    parser.add_argument("--minutes", type=float, default=0.0, help="with --daemon: leave the page open for so long")
    parser.add_argument("--recording", type=int, default=0, help="measure `refold show` with so many entries")
    options = parser.parse_args()
    if options.recording:
        measure_recording(options)
    elif options.daemon:
        measure_daemon(options)
    else:
        measure_imitation(options)


if __name__ == "__main__":
    main()
