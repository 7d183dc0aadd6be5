"""Find or build the servers that the Kubernetes tests run against; print the folder that has them.

Looked for in `KUBEBUILDER_ASSETS`, then in ~/.cache/refold/engines/VERSION. Otherwise they are built there from Go
modules, which needs Go and a module proxy, about 20 minutes on two cores, and 3 GB for Go's own caches. Nothing is
downloaded but Go modules, whose checksums Go verifies. `--find` only looks. `REFOLD_BUILD_MINUTES` limits the time;
what was compiled by then is kept by Go. `REFOLD_KUBERNETES=v1.29.15` names another version of Kubernetes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

KUBERNETES = os.environ.get("REFOLD_KUBERNETES") or "v1.36.4"
ETCD = "v3.6.8"
KWOK = "v0.8.0"
KUEUE = "v0.15.0"
"""The newest version whose module and checksum the public proxy has."""

SERVERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
REQUIRED = SERVERS[:3]
"""What the tests need. kube-scheduler is for comparison."""

EXTRAS = ("kwok", "kueue")
"""What benchmarks use if it is there: KWOK for nodes and pods, Kueue for comparison."""

STARTED = time.monotonic()
STAGING = re.compile(r"^\s+(k8s\.io/[a-z-]+) => \./staging/", re.MULTILINE)


class Program(NamedTuple):
    """A program, its package, and the module that has it."""

    name: str
    package: str
    module: str
    version: str


PROGRAMS = [
    Program("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", ETCD),
    *(
        Program(name, f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", KUBERNETES)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    ),
    Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok", KWOK),
    Program("kueue", "sigs.k8s.io/kueue/cmd/kueue", "sigs.k8s.io/kueue", KUEUE),
]
DATA = {"kwok": "kustomize/stage", "kueue": "config/components"}
"""Folders of modules that their programs need: copied beside the program, as `NAME-data`."""


def cache_folder() -> Path:
    """Return where the servers are kept, outside the checkout."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "refold" / "engines" / f"kubernetes-{KUBERNETES}"


def find_servers(names: tuple[str, ...] = REQUIRED) -> Path | None:
    """Return a folder that has these servers, or None."""
    folders = [Path(os.environ["KUBEBUILDER_ASSETS"])] if os.environ.get("KUBEBUILDER_ASSETS") else []
    folders.append(cache_folder())
    return next((folder for folder in folders if all(os.access(folder / name, os.X_OK) for name in names)), None)


def build_servers(folder: Path, names: tuple[str, ...]) -> None:
    """Build the servers that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        if program.name in names and not (folder / program.name).exists():
            began = time.monotonic()
            _build(program, folder)
            print(f"{time.monotonic() - began:.0f} s: built {program.name} {program.version}", file=sys.stderr)


def _build(program: Program, folder: Path) -> None:
    source = folder / "build" / program.name
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    (source / "go.mod").write_text(_go_mod(program))
    (source / "tools.go").write_text(f'//go:build tools\n\npackage tools\n\nimport _ "{program.package}"\n')
    flags = f"{os.environ.get('GOFLAGS', '')} -mod=mod -buildvcs=false".strip()
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": flags}
    version = f"-X k8s.io/component-base/version.gitVersion={program.version}"
    built = source / program.name
    command = ["go", "build", "-trimpath", "-ldflags", f"-s -w {version}", "-o", str(built), program.package]
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=sys.stderr, timeout=_seconds_left())
    if program.name in DATA:
        _copy_data(program, source, environment, folder / f"{program.name}-data")
    built.rename(folder / program.name)
    shutil.rmtree(source)


def _copy_data(program: Program, source: Path, environment: dict[str, str], target: Path) -> None:
    command = ["go", "list", "-m", "-f", "{{.Dir}}", program.module]
    found = subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(Path(found.stdout.strip()) / DATA[program.name], target, copy_function=shutil.copyfile)
    for path in (target, *target.rglob("*")):  # folders of modules are read-only
        path.chmod(0o755 if path.is_dir() else 0o644)


def build_extras(folder: Path) -> None:
    """Build what is useful but not needed; print what cannot be built."""
    for name in EXTRAS:
        try:
            build_servers(folder, (name,))
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{name} cannot be built: {error}", file=sys.stderr)


def _seconds_left() -> float | None:
    minutes = os.environ.get("REFOLD_BUILD_MINUTES")
    return None if minutes is None else max(1.0, STARTED + 60 * float(minutes) - time.monotonic())


def _go_mod(program: Program) -> str:
    """Return a module that requires the program. Kubernetes requires its own libraries in a checkout: replace those."""
    lines = ["module refold.dev/engines", "go 1.26.0", f"require {program.module} {program.version}"]
    if program.module == "k8s.io/kubernetes":
        libraries = "v0" + program.version.removeprefix("v1")
        lines += [f"replace {name} => {name} {libraries}" for name in _staging_modules(program)]
    return "\n".join(lines) + "\n"


def _staging_modules(program: Program) -> list[str]:
    proxies = subprocess.run(["go", "env", "GOPROXY"], capture_output=True, text=True, check=True).stdout
    proxy = next(part for part in re.split(r"[,|]", proxies.strip()) if part.startswith("http"))
    with urlopen(f"{proxy}/{program.module}/@v/{program.version}.mod", timeout=60) as answer:
        return sorted(set(STAGING.findall(answer.read().decode())))


def main() -> None:
    """Print the folder of the servers; exit with status 3 if there are none and they cannot be built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--find", action="store_true", help="do not build")
    parser.add_argument("--all", action="store_true", help="also kube-scheduler, and KWOK and Kueue if possible")
    options = parser.parse_args()
    names = SERVERS if options.all else REQUIRED
    folder = find_servers(names)
    if folder is None and not options.find:
        if shutil.which("go") is None:
            raise SystemExit("the Kubernetes servers are not there, and building them needs Go 1.26 or newer")
        try:
            build_servers(cache_folder(), names)
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            raise SystemExit(f"the Kubernetes servers cannot be built: {error}") from None
        folder = find_servers(names)
    if folder == cache_folder() and options.all and not options.find and shutil.which("go"):
        build_extras(folder)
    if folder is None:
        raise SystemExit("the Kubernetes servers are not there; build them with tools/build_kubernetes.py")
    print(folder)


if __name__ == "__main__":
    main()
