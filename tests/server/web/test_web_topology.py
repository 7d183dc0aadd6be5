"""The web UI on a cluster with levels: the map groups GPUs by domain, and a job's page has its domains."""

from __future__ import annotations

from typing import Any

from fake_service import OWNER
from web_browser import sign_in
from web_demo import serve_demo

LAY_OUT = """async ([nodes, width]) => {
    const app = document.querySelector("script[type=module]").src;
    const { layOut } = await import(app.replace("app.js", "gpu_layout.js"));
    const { cells, labels } = layOut(nodes, width, 400);
    const lines = cells.map((cell) => [cell.gpu.node, Math.round(cell.y)]);
    return { lines: Object.fromEntries(lines), labels: labels.map((one) => [one.text, one.domain]) };
}"""


def test_the_page_of_a_job_has_its_domains(page: Any) -> None:
    with serve_demo(256, 20) as (service, address):
        job = next(one for one in service.jobs_by_id.values() if len(one.domains.get("rack", ())) == 2)
        sign_in(page, address, OWNER, f"jobs/{job.id}")
        racks = ", ".join(job.domains["rack"])
        page.get_by_text(f"1 block: b1 · 2 racks: {racks}", exact=True).wait_for()


def test_the_tip_of_a_gpu_names_its_domains(page: Any) -> None:
    with serve_demo(256, 20) as (_, address):
        sign_in(page, address, OWNER)
        page.locator(".gpu-map .legend-entry").first.wait_for()
        page.locator(".gpu-canvas").focus()
        page.locator(".gpu-map .tip").get_by_text("block b1 · rack r1", exact=True).wait_for()


def test_the_nodes_of_an_outermost_domain_begin_a_line_and_each_domain_is_named_once(page: Any) -> None:
    paths = [["b0", "r0"], ["b0", "r0"], ["b0", "r1"], ["b1", "r0"], ["b1", "r0"]]
    nodes = [
        {"name": f"n{number}", "path": path, "gpus": [{"node": f"n{number}", "index": 0}]}
        for number, path in enumerate(paths)
    ]
    with serve_demo(8, 1) as (_, address):
        page.goto(f"{address}/")
        found = page.evaluate(LAY_OUT, [nodes, 1200])
    lines = found["lines"]
    assert lines["n0"] == lines["n1"] == lines["n2"] < lines["n3"] == lines["n4"]
    assert [name for _, name in found["labels"]] == ["b0 · r0", "", "r1", "b1 · r0", ""]
