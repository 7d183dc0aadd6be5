"""Measure the web UI: bytes transferred, time until it is painted, and memory while it is left open.

python tools/web_measures.py [--gpus 1000 --jobs 10000] [--events 5000]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from fake_service import OWNER, serve  # noqa: E402
from web_browser import open_browser, sign_in  # noqa: E402
from web_demo import DemoService  # noqa: E402

from refold.api.wire import Event  # noqa: E402

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


def heap_megabytes(page: Any) -> float:
    """Return the memory of the page's scripts after garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return float(metrics["JSHeapUsedSize"] / 1e6)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    service = DemoService(options.gpus, options.jobs)
    with serve(service) as server, open_browser() as browser:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        sign_in(page, server.address, OWNER)
        page.add_init_script(f"({WATCH})()")
        loads = [measure_load(page, server.address) for _ in range(options.repeat)]
        for number, name in enumerate(("first paint, s", "queue and map shown, s", "bytes transferred")):
            values = [load[number] for load in loads]
            print(f"{name}: median {statistics.median(values):,.2f}, largest {max(values):,.2f}")
        before = heap_megabytes(page)
        for first in range(0, options.events, 100):
            numbers = range(service.event_stream.last + 1, service.event_stream.last + 101)
            events = [Event(number, service.now, "note", "resnet-1", 1, "step") for number in numbers]
            server.call(service.event_stream.publish, events)
            page.wait_for_timeout(200)
            if first % 1000 == 0:
                print(f"heap after {first:,} events: {heap_megabytes(page):.1f} MB")
        print(f"heap before: {before:.1f} MB, after {options.events:,} events: {heap_megabytes(page):.1f} MB")


if __name__ == "__main__":
    main()
