"""Make screenshots of the web UI: every page, light and dark, and on a phone.

python tools/web_screenshots.py build/web [--gpus 1000 --jobs 10000] [--pages overview,jobs]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from fake_service import OWNER  # noqa: E402
from web_browser import open_browser, sign_in  # noqa: E402
from web_demo import serve_demo  # noqa: E402

LOOKS = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 400, "height": 860},
        "color_scheme": "light",
        "device_scale_factor": 2,
        "is_mobile": True,
    },
}
PAGES = {
    "overview": "",
    "jobs": "jobs",
    "job": "jobs/{job}",
    "timeline": "timeline",
    "nodes": "nodes",
    "tenants": "tenants",
    "whatif": "whatif",
    "plan": "plan",
}


def main() -> None:
    """Write the pictures to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--pages", default=",".join(PAGES))
    parser.add_argument("--looks", default=",".join(LOOKS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with serve_demo(options.gpus, options.jobs) as (service, address), open_browser() as browser:
        job = next(one.id for one in service.jobs_by_id.values() if one.state == "running")
        for look in options.looks.split(","):
            page = browser.new_context(**LOOKS[look]).new_page()
            page.on("console", lambda message: print("console:", message.text))
            page.on("pageerror", lambda error: print("error:", error))
            sign_in(page, address, OWNER)
            for name in options.pages.split(","):
                page.evaluate("at => { location.hash = '#/' + at }", PAGES[name].format(job=job))
                page.wait_for_load_state("networkidle")
                if name in ("whatif", "plan"):
                    page.locator(".ask-form button").click()
                    for button in page.locator(".policy-form button").all():
                        button.click()
                    page.wait_for_load_state("networkidle")
                page.wait_for_timeout(1200)
                page.screenshot(path=options.folder / f"{name}-{look}.png", full_page=look != "phone")
                print(options.folder / f"{name}-{look}.png")


if __name__ == "__main__":
    main()
