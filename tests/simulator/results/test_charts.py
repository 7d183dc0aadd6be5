"""Charts: axes, lines, bars, Gantt charts and images."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, strategies as some
from journals import start, step, submitted

from refold.core.events import RunFinished
from refold.journal.history import History
from refold.placement import Floats
from refold.simulator.results.axes import Axis, Frame, Plot, nice_maximum, nice_step, range_axis, ticks, value_axis
from refold.simulator.results.charts import (
    TEXT_HEIGHT,
    BarGroup,
    ChartLine,
    DrawnLine,
    LabelPlace,
    bar_chart,
    line_chart,
    place_labels,
)
from refold.simulator.results.gantt import (
    FILLS,
    JobColours,
    choose_colours,
    count_blocks,
    encode_png,
    gantt_chart,
    rasterise,
)
from refold.simulator.results.svg import DARK_SERIES, LIGHT_SERIES, document, series_class, tag
from refold.testing import make_cluster, make_job


@pytest.mark.parametrize(
    ("axis", "texts"),
    [
        (Axis("time", 0, 86400 * 7), ["0", "1 d", "2 d", "3 d", "4 d", "5 d", "6 d", "7 d"]),
        (Axis("time", 1000, 1000 + 3600 * 5), ["0", "1 h", "2 h", "3 h", "4 h", "5 h"]),
        (Axis("time", 0, 86400 * 1000), ["0", "200 d", "400 d", "600 d", "800 d", "1000 d"]),
        (Axis("share", 0, 1), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        (Axis("share", 0, 0.02), ["0.0 %", "0.5 %", "1.0 %", "1.5 %", "2.0 %"]),
        (Axis("count", 0, 5000), ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        (Axis("count", 0, 3), ["0", "1", "2", "3"]),
        (Axis("duration", 1, 7200), ["1 s", "10 s", "1 min", "10 min", "1 h"]),
        (Axis("log", 0.5, 20), ["0.5", "1", "2", "5", "10", "20"]),
        (Axis("count", 0, 64, [(0, "none"), (64, "all")]), ["none", "all"]),
    ],
)
def test_ticks_are_at_round_numbers(axis: Axis, texts: list[str]) -> None:
    assert [text for _, text in ticks(axis)] == texts


def test_tick_steps_are_one_two_or_five_times_a_power_of_ten() -> None:
    assert [nice_step(length, 5) for length in (1, 7, 23, 100, 0.3)] == pytest.approx([0.2, 2, 5, 20, 0.1])
    assert [nice_maximum(value) for value in (0.0, 7, 23, 100, 470)] == [1, 8, 25, 100, 500]


def test_a_value_axis_begins_at_zero_unless_values_differ_widely() -> None:
    assert value_axis([2.0, 7.5]) == Axis("count", 0.0, 8.0)
    assert value_axis([2.0, 12.1]) == Axis("log", 2.0, 20.0)
    assert value_axis([0.3, 700.0]) == Axis("log", 0.2, 1000.0)


def test_a_range_axis_has_ticks_at_both_ends() -> None:
    axis = range_axis(90.3, 93.6)
    assert (axis.low, axis.high) == (90, 94)
    assert [text for _, text in ticks(axis)] == ["90", "91", "92", "93", "94"]
    assert ticks(range_axis(0.31, 0.32))[0] == (0.31, "0.31")


def test_values_are_placed_between_the_edges_of_the_frame() -> None:
    plot = Plot(Frame(120, 60, left=10, right=10, top=5, bottom=5), Axis("log", 1, 100), Axis("count", 0, 10))
    assert [plot.x(value) for value in (0.1, 1, 10, 100)] == pytest.approx([10, 10, 60, 110])
    assert [plot.y(value) for value in (0, 5, 10)] == [55, 30, 5]
    ends = np.array([1.0, 100.0])
    assert plot.path(ends, np.array([0.0, 10.0])) == "M10 55L110 5"
    assert plot.band(ends, np.array([0.0, 4.0]), np.array([2.0, 6.0])) == "M10 45L110 25L110 35L10 55Z"


def test_colours_are_reused_with_dashed_lines() -> None:
    assert [series_class(series) for series in (0, 9, 10)] == ["s0 p0", "s9 p9", "s0 p10 dashed"]


LINEAR_TO_LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
LMS_TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
COLOUR_VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
"""Linear RGB as it is seen (Machado et al. 2009)."""


def linear(colour: str) -> Floats:
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(rgb: Floats) -> Floats:
    """Return the coordinates in OKLab, in which distances are as large as they look (about 0.02 is just noticeable)."""
    lab: Floats = np.array(LMS_TO_LAB) @ np.cbrt(np.array(LINEAR_TO_LMS) @ np.clip(rgb, 0, 1))
    return lab


def luminance(colour: str) -> float:
    return float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour))


@pytest.mark.parametrize(("colours", "page"), [(LIGHT_SERIES, "#ffffff"), (DARK_SERIES, "#1a1e23")])
def test_ten_series_are_distinguishable_from_each_other_and_from_the_page(colours: Sequence[str], page: str) -> None:
    assert len(colours) >= 10
    for vision, smallest in (("normal", 0.14), ("deuteranopia", 0.075), ("protanopia", 0.075)):
        seen = [oklab(COLOUR_VISION[vision] @ linear(colour)) for colour in colours]
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > smallest, vision
    for colour in colours:
        dark, light = sorted((luminance(colour), luminance(page)))
        assert (light + 0.05) / (dark + 0.05) >= 3, f"{colour} has too little contrast (WCAG)"


FRAME = Frame(720, 290)


def overlap(one: LabelPlace, other: LabelPlace) -> bool:
    return abs(one.x - other.x) < (one.width + other.width) / 2 and abs(one.y - other.y) < TEXT_HEIGHT


@given(
    some.lists(some.lists(some.floats(20, 250), min_size=2, max_size=20), min_size=2, max_size=10),
    some.integers(1, 24),
)
def test_names_of_lines_are_in_the_frame_and_do_not_overlap(heights: list[list[float]], length: int) -> None:
    lines = [
        DrawnLine("n" * length, np.linspace(FRAME.left, FRAME.right_edge, len(ys)), np.array(ys)) for ys in heights
    ]
    places = [place for place in place_labels(lines, FRAME) if place is not None]
    assert places
    for place in places:
        assert FRAME.left <= place.x - place.width / 2 and place.x + place.width / 2 <= FRAME.right_edge
        assert FRAME.top <= place.y <= FRAME.bottom_edge
    assert not any(overlap(one, other) for one, other in combinations(places, 2))


def test_the_name_of_a_line_is_closer_to_it_than_to_any_other() -> None:
    x = np.linspace(FRAME.left, FRAME.right_edge, 50)
    lines = [DrawnLine("same at first", x, np.where(x < 400, 150, height)) for height in (40.0, 150.0, 240.0)]
    for index, place in enumerate(place_labels(lines, FRAME)):
        assert place is not None
        distances = [abs(float(np.interp(place.x, line.x, line.y)) - place.y) for line in lines]
        assert distances.index(min(distances)) == index
        assert sorted(distances)[1] > 40


def test_lines_and_bars_are_labelled_with_their_names() -> None:
    x = np.array([0.0, 10.0])
    lines = [ChartLine(0, "low", x, np.array([0.1, 0.1])), ChartLine(1, "high <", x, np.array([0.9, 0.9]))]
    html = line_chart(lines, Axis("time", 0, 10), Axis("share", 0, 1), label="two").html
    names = [text for text in ElementTree.fromstring(html).iter("text") if "line-name" in text.attrib["class"]]
    assert [(text.text, text.attrib["class"]) for text in names] == [
        ("low", "line-name s0 p0"),
        ("high <", "line-name s1 p1"),
    ]


def test_row_labels_are_separate_so_that_they_stay_when_the_chart_is_scrolled() -> None:
    line = ChartLine(0, "up", np.array([0.0, 10.0]), np.array([0.0, 1.0]))
    html = line_chart([line], Axis("time", 0, 10), Axis("share", 0, 1), label="a line").html
    drawing, margin = ElementTree.fromstring(html)
    assert [text.text for text in margin.iter("text")] == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]
    assert "%" not in "".join(drawing.itertext())
    # Both have the same scale: the margin is as much narrower on the page as it is in its own coordinates.
    width, height = drawing.attrib["viewBox"].split()[2:]
    margin_width, margin_height = margin.attrib["viewBox"].split()[2:]
    assert height == margin_height
    assert margin.attrib["style"] == f"width: {100 * float(margin_width) / float(width):.3f}%"


def test_a_document_is_a_complete_file_with_an_escaped_title() -> None:
    text = document(200, 100, "a & b", "c < d", [tag("rect", width=5)], ".more { fill: red; }")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {name: root.attrib[name] for name in ("viewBox", "width", "height", "aria-label")} == {
        "viewBox": "0 0 200 100",
        "width": "200",
        "height": "100",
        "aria-label": "a & b",
    }
    style, page, title, subtitle, rect = root
    assert "prefers-color-scheme: dark" in str(style.text) and ".more" in str(style.text)
    assert (page.attrib["class"], title.text, subtitle.text, rect.attrib) == ("page", "a & b", "c < d", {"width": "5"})


def test_a_rising_line_goes_from_the_bottom_left_to_the_top_right() -> None:
    line = ChartLine(0, "up", np.array([0.0, 10.0]), np.array([0.0, 1.0]))
    chart = line_chart([line], Axis("time", 0, 10), Axis("share", 0, 1), label="a line")
    assert 'd="M62 262L698 14"' in chart.html
    assert chart.data["lines"] == [{"series": 0, "name": "up", "x": [0.0, 10.0], "y": [0.0, 1.0]}]
    ElementTree.fromstring(chart.html)


def test_names_are_escaped_in_a_chart() -> None:
    name = '"><script>alert(1)</script>'
    bars = bar_chart([BarGroup(name, [1.0, None], ["<b>", ""])], label=name)
    assert "<script" not in bars.html and "<b>" not in bars.html
    ElementTree.fromstring(bars.html)
    assert tag("text", "a<b", class_='"') == '<text class="&quot;">a&lt;b</text>'


def two_tenants() -> History:
    entries = (
        step(0, submitted(make_job("a", tenant="one", gpus=2)), start("a", gpus=(0, 1))),
        step(0, submitted(make_job("b", tenant="two", share=0.5)), start("b", node=1, milli=500)),
        step(50, submitted(make_job("c", tenant="two", share=0.5)), start("c", node=1, milli=500)),
        step(100, RunFinished("a", 1), RunFinished("b", 1), RunFinished("c", 1)),
    )
    return History.from_entries(make_cluster(2, 1), entries)


def test_adjacent_gpus_of_a_run_share_a_block_and_shares_of_a_gpu_are_stacked() -> None:
    history = two_tenants()
    assert count_blocks(history) == 3
    chart = gantt_chart(history, choose_colours(history), Axis("time", 0, 100), as_image=False, label="")
    paths = [one.attrib for one in ElementTree.fromstring(chart.html).iter("path")]
    assert [path["class"] for path in paths] == ["f0", "f1", "f1"]
    assert [path["d"] for path in paths] == [
        "M84.0 8.0h1098.0v32.0h-1098.0z",
        "M84.0 40.0h1098.0v8.0h-1098.0z",
        "M633.0 48.0h549.0v8.0h-549.0z",
    ]
    assert chart.data["blocks"][2] == [2, 1, 50.0, 100.0, 1, 1, 0, 0]


def test_jobs_of_a_single_tenant_are_coloured_by_size() -> None:
    history = History.from_entries(make_cluster(2), (step(0, submitted(make_job("a", gpus=2))),))
    assert choose_colours(history).attribute == "job size"


def test_the_smallest_of_many_tenants_share_one_colour() -> None:
    jobs = [make_job(f"j{n}", tenant=f"t{n:02}") for n in range(30)]
    history = History.from_entries(make_cluster(1), [step(0, *(submitted(job) for job in jobs))])
    colours = choose_colours(history)
    assert len(colours.names) == len(FILLS) and colours.names[-1] == "all others"
    assert max(colours.fill_of_job.tolist()) == len(FILLS) - 1


def test_a_raster_has_a_pixel_for_each_time_a_gpu_was_held() -> None:
    history = two_tenants()
    pixels = rasterise(history, JobColours("", ("one", "two"), np.array([0, 1, 1])), Axis("time", 0, 200))
    assert pixels.shape == (3, 1000)
    assert [pixels[row, column] for row in range(3) for column in (0, 499, 500)] == [1, 1, 0, 1, 1, 0, 2, 2, 0]


def test_a_png_image_decodes_to_the_same_pixels() -> None:
    pixels = np.array([[0, 1, 2], [3, 2, 1]], dtype=np.uint8)
    image = encode_png(pixels, FILLS)
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(image):
        length, kind = struct.unpack(">I4s", image[at : at + 8])
        data = image[at + 8 : at + 8 + length]
        assert struct.unpack(">I", image[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        at += 12 + length
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (3, 2)
    assert list(zlib.decompress(chunks[b"IDAT"])) == [0, 0, 1, 2, 0, 3, 2, 1]
