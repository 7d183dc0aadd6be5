"""What is published: versions, the release workflow, the image, the manual page; and nothing else is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.check_release import package_version, problem
from tools.install import locked_requirements
from tools.man_page import render

from refold import __version__
from refold.cli.lazy_group import SECTIONS

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def load(name: str) -> Any:
    return yaml.safe_load(read(name))


def test_all_files_name_the_version_of_the_package() -> None:
    chart = load("deploy/helm/refold/Chart.yaml")
    images = [load("deploy/helm/refold/values.yaml")["image"], *re.findall(r"image: (\S+)", read(MANIFEST))]
    assert package_version() == __version__
    assert {chart["version"], chart["appVersion"], str(load("CITATION.cff")["version"])} == {__version__}
    assert set(images) == {f"refold:{__version__}"}


MANIFEST = "deploy/kubernetes/deployment.yaml"


@pytest.mark.parametrize(
    ("tag", "changelog", "found"),
    [
        (f"v{__version__}", f"# Changelog\n## [{__version__}] - 2026-12-01\n", ""),
        (f"v{__version__}", "## [Unreleased]\n", f"CHANGELOG.md has no section '## [{__version__}]'"),
        ("v9.9.9", "", f"the tag is v9.9.9, but the version is {__version__}: change __version__ in "),
    ],
)
def test_a_release_needs_the_tag_and_a_section_of_the_changelog(tag: str, changelog: str, found: str) -> None:
    assert problem(tag, changelog).startswith(found) and bool(problem(tag, changelog)) == bool(found)


def test_wheels_are_built_for_both_systems_and_architectures_and_published_with_provenance() -> None:
    jobs = load(".github/workflows/release.yml")["jobs"]
    wheels, publish = jobs["wheels"], jobs["publish"]
    assert wheels["strategy"]["matrix"]["os"] == ["ubuntu-latest", "ubuntu-24.04-arm", "macos-15-intel", "macos-15"]
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', read("pyproject.toml"))
    assert wheels["env"]["CIBW_BUILD"].split() == [f"cp{one.replace('.', '')}-*" for one in classifiers]
    assert publish["needs"] == ["wheels", "sdist"] and jobs["wheels"]["needs"] == jobs["sdist"]["needs"] == "version"
    assert publish["permissions"] == {"attestations": "write", "contents": "write", "id-token": "write"}
    used = [step["uses"].partition("@")[0] for step in publish["steps"] if "uses" in step]
    assert used[-2:] == ["actions/attest-build-provenance", "pypa/gh-action-pypi-publish"]


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile and their arguments."""
    lines = re.sub(r"^#.*\n", "", read("Dockerfile"), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines if line.strip()]


def test_the_image_has_everything_that_the_daemon_imports() -> None:
    [installed] = [text for name, text in instructions() if name == "RUN" and "locked_requirements" in text]
    [names] = re.findall(r"locked_requirements\((\[.*?\])\)", installed)
    packages = set(
        re.findall(r"^([a-z0-9-]+)==", locked_requirements(json.loads(names.replace("'", '"'))), re.MULTILINE)
    )
    assert packages >= {"lazy-loader", "msgspec", "numpy", "scipy", "typer", "rich", "pyyaml", "uvicorn", "jinja2"}
    assert "refold simulate" in installed  # what does not run is no image


def test_the_image_is_small_not_root_and_checked() -> None:
    stages = [index for index, (name, _) in enumerate(instructions()) if name == "FROM"]
    last = instructions()[stages[-1] :]
    found = dict(last)
    assert all(re.match(r"python:3\.\d+-slim-\w+( AS \w+)?$", instructions()[index][1]) for index in stages)
    assert len(stages) == 2 and found["COPY"].startswith("--from=build")
    assert not any("apt-get" in text for name, text in last if name == "RUN")
    assert found["USER"] == "1000"
    assert "/healthz" in found["HEALTHCHECK"]
    assert [name for name, _ in last].index("USER") > [name for name, _ in last].index("COPY")
    for name, text in instructions():
        assert name in {
            "FROM",
            "RUN",
            "WORKDIR",
            "COPY",
            "ARG",
            "ENV",
            "USER",
            "VOLUME",
            "EXPOSE",
            "HEALTHCHECK",
            "CMD",
        }
        if "apt-get install" in text:
            assert "--no-install-recommends" in text and "rm -rf /var/lib/apt/lists" in text
        if "pip install" in text:
            assert text.count("--no-cache-dir") == text.count("pip install")


def test_what_the_image_is_built_from_exists() -> None:
    lines = [line for line in read(".dockerignore").splitlines() if not line.startswith("#")]
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert lines[0] == "*" and all((ROOT / name).exists() for name in kept)
    assert {"src", "tools", "pyproject.toml", "requirements.lock", "setup.py", "README.md"} <= set(kept)


def test_the_image_is_built() -> None:
    program = shutil.which("docker") or shutil.which("podman")
    if program is None or subprocess.run([program, "info"], capture_output=True, check=False).returncode:
        pytest.skip("needs Docker or Podman, with a daemon that answers")
    built = subprocess.run([program, "build", "--quiet", str(ROOT)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    shown = [program, "run", "--rm", built.stdout.strip(), "refold", "--version"]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout.startswith("refold ")


def test_no_file_installs_a_package_that_is_not_published() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs the files that git tracks")
    files = [
        ROOT / name for name in listed.stdout.splitlines() if name.endswith((".md", ".py", ".yaml", ".yml", "file"))
    ]
    wrong = re.compile(r"(pip|pipx|tool) install (--\S+ )*['\"]?refold\b")
    assert [str(path) for path in files if path.exists() and wrong.search(path.read_text(encoding="utf-8"))] == []


def test_the_manual_page_has_every_command_and_no_mistakes() -> None:
    page = render()
    commands = [name for section in SECTIONS.values() for name in section]
    assert [name for name in commands if f".SS refold {name}" not in page] == []
    if shutil.which("groff") is None:
        pytest.skip("needs groff to check the page")
    checked = ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-z"]
    assert subprocess.run(checked, input=page, capture_output=True, text=True, check=False).stderr == ""
