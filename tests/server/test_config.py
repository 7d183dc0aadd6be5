"""`refold.yaml`: values, defaults, and errors with line numbers."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from refold.cli.commands.serve import init
from refold.errors import BadFile, RefoldError
from refold.model import HOUR, PreemptionRules, Tenant
from refold.server.config.limits import HttpConfig, TenantLimits
from refold.server.config.reader import parse_config, read_config
from refold.server.config.settings import (
    ClusterConfig,
    Config,
    IdleRule,
    NotifyConfig,
    OutputRule,
    PolicyConfig,
    ServeConfig,
    SlurmConfig,
    TenantConfig,
    UsersConfig,
    WatchConfig,
)
from refold.server.config.template import render_template, write_template
from refold.server.config.topology import TopologyConfig
from refold.server.monitor.machine import SlotsMachine
from refold.server.monitor.nvidia import XIDS, DetectedGpu

COMPLETE_FILE = """\
cluster: {name: lab, nodes: {a: 4, b: 2}, cpus: 16, memory_gib: 64}
tenants:
  vision: {quota_gpus: 4, limit_gpus: 6}
  language:
policy:
  name: conservative
  settings: {depth: 3, durations: limit, confidence: 0.9}
watch:
  no_progress: 30m
  beyond_limit: no
  grace: 1m
  idle: {utilisation_below: 10, for: 1h}
  bad_gpus: warn
  output:
    - {pattern: 'CUDA error', action: drain-node}
notify:
  urls: {failed: 'json://127.0.0.1:1/', gpu_bad: [slack://a/b/c, ntfy://d]}
  users: {ann: [ntfys://ntfy.sh/x]}
  kinds: [failed, finished]
  waiting_long_after: 2h
serve: {host: 0.0.0.0, port: 8000, grace: 30s, max_output: 1GiB, keep_logs_for: 7d, allowed_hosts: [gpus.lab]}
"""


def test_a_complete_file_is_read() -> None:
    assert parse_config(COMPLETE_FILE, "refold.yaml") == Config(
        cluster=ClusterConfig("lab", nodes={"a": 4, "b": 2}, cpus=16, memory_gib=64),
        tenants=(Tenant("vision", 4, 6), Tenant("language")),
        policy=PolicyConfig("conservative", {"depth": 3, "durations": "limit", "confidence": 0.9}),
        watch=WatchConfig(
            no_progress=1800.0,
            beyond_limit=False,
            grace=60.0,
            idle=IdleRule(10, 3600),
            bad_gpus="warn",
            output=(OutputRule("CUDA error", "drain-node"),),
        ),
        notify=NotifyConfig(
            {"failed": ("json://127.0.0.1:1/",), "gpu_bad": ("slack://a/b/c", "ntfy://d")},
            {"ann": ("ntfys://ntfy.sh/x",)},
            ("failed", "finished"),
            7200,
        ),
        serve=ServeConfig("0.0.0.0", 8000, 30, 2**30, 7 * 86400, ("gpus.lab",)),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "cluster:\ntenants:\npolicy:\nwatch:\n", "{}"])
def test_an_empty_file_gives_the_defaults(text: str) -> None:
    assert parse_config(text, "refold.yaml") == Config()


def test_limits_of_tenants_override_the_general_ones() -> None:
    text = "limits: {time: 2d, jobs: 100, tenants: {guests: {jobs: 5, output: 1MiB, grace: 0s}}}"
    limits = parse_config(text, "refold.yaml").limits
    assert limits.of("vision") == TenantLimits(grace=3600, time=2 * 86400, jobs=100)
    assert limits.of("guests") == TenantLimits(grace=0, time=2 * 86400, jobs=5, output=2**20)


def test_the_pool_of_slurm() -> None:
    text = "slurm: {partition: gpu, pool: 2, pool_time: 12h, pool_jobs: [4711, 12]}"
    expected = SlurmConfig("gpu", pool=2, pool_time=12 * HOUR, pool_jobs=(4711, 12))
    assert parse_config(text, "refold.yaml").slurm == expected


def test_limits_of_the_http_server() -> None:
    text = "http: {connections: 64, body_size: 2MiB}"
    assert parse_config(text, "refold.yaml").http == HttpConfig(connections=64, body_size=2 * 2**20)


def test_users_of_the_machine_and_their_tenants() -> None:
    text = "serve: {socket: off}\nusers: {allow: [ann, '@lab'], tenants: {'@lab': vision}}"
    config = parse_config(text, "refold.yaml")
    assert (config.serve.socket, config.users) == ("off", UsersConfig(("ann", "@lab"), {"@lab": "vision"}))
    assert parse_config("users: {allow: all}", "refold.yaml").users == UsersConfig("all")


def test_watch_rules_become_a_policy_setting() -> None:
    watch = {"beyond_limit": True, "grace": 300.0, "limit_grace": 5.0, "per_job": True}
    assert Config().policy_settings == {"watch": watch, "profile": True}
    config = parse_config("policy: {name: las}\nwatch: {beyond_limit: false, idle: off}", "refold.yaml")
    assert (config.policy_settings, config.watch.idle) == ({"watch": {"per_job": True}}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenants:\n  vision:\n    quota_gpus: -1", "line 3: tenants.vision.quota_gpus is -1, expected GPUs ≥ 0"),
        ("tenants: {a: {quota_gpus: .nan}}", "line 1: tenants.a.quota_gpus is .nan, expected GPUs ≥ 0"),
        (
            "tenants: {a: {quota_gpus: 4, limit_gpus: 2}}",
            "line 1: tenants.a.limit_gpus is 2, expected at least quota_gpus, 4 (0: no limit)",
        ),
        (
            "\ntenant: {}",
            "line 2: unknown field 'tenant'; did you mean 'tenants'?"
            " (known: cluster, http, kubernetes, limits, notify, policy, power, preemption, ray, serve,"
            " slurm, tenants, topology, users, watch)",
        ),
        (
            "tenants:\n  a:\n    quota: 3",
            "line 3: tenants.a: unknown field 'quota'; did you mean 'quota_gpus'? (known: limit_gpus, quota_gpus)",
        ),
        (
            "tenants: {'a/b': {}}",
            "line 1: tenants.a/b: the key is 'a/b', expected a name of up to 64 letters, digits, '.', '_' and '-'",
        ),
        ("cluster: {slots: 63}", "line 1: cluster.slots is 63, expected a number of slots from 1 to 62"),
        ("http: {connections: 8}", "line 1: http.connections is 8, expected a number from 16 to 65536"),
        ("http: {body_size: 9MiB}", "line 1: http: body_size is too large, expected 4KiB to 8MiB"),
        ("cluster: {gpus: [0, 0]}", "line 1: cluster: gpus is invalid, expected at least one GPU, each once"),
        ("cluster: {gpus: 4}", "line 1: cluster.gpus is 4, expected auto, or GPU numbers such as [0, 1]"),
        (
            "cluster:\n  slots: 4\n  gpus: auto",
            "line 1: cluster: gpus and slots are mutually exclusive",
        ),
        (
            "policy:\n  name: easy\n  settings:\n    depth: -1",
            "line 3: policy.settings: depth is -1, expected ≥ 0 (0: the default of easy)",
        ),
        (
            "watch: {no_progress: 0s}",
            "line 1: watch.no_progress is '0s', expected a duration greater than 0, such as 15m",
        ),
        (
            "watch: {silent_too: true}",
            "line 1: watch.silent_too: no longer a setting:"
            " job files may set no_progress for jobs that always report progress",
        ),
        ("http:\n  idle_timeout: 9s", "line 2: http.idle_timeout: no longer a setting: it is always 5s"),
        (
            "policy: easy\nprediction: {durations: limit}",
            "line 2: prediction: no longer a setting: its keys are settings of the policies easy and conservative;"
            " write them to policy.settings",
        ),
        (
            "watch: {idle: true}",
            "line 1: watch.idle is true, expected off, or a rule such as {utilisation_below: 5, for: 30m}",
        ),
        ("watch: {bad_gpus: maybe}", "line 1: watch.bad_gpus is 'maybe', expected one of drain, warn, off"),
        (
            "watch:\n  output:\n  - {pattern: '(', action: no-retry}",
            "line 3: watch.output[0].pattern is '(', expected a regular expression: missing ): (; "
            "patterns have RE2 syntax (no back-references, no look-around)",
        ),
        (
            "watch: {output: [{pattern: x}]}",
            "line 1: watch.output[0]: action is missing, expected one of no-retry, drain-node",
        ),
        (
            "notify: {users: {ann: me}}",
            "line 1: notify.users.ann is 'me', expected an Apprise URL such as ntfys://ntfy.sh/our-gpus",
        ),
        (
            "serve: {allowed_hosts: gpus.lab}",
            "line 1: serve.allowed_hosts is 'gpus.lab', expected a list of host names such as [gpus.lab]",
        ),
        (
            "serve: {allowed_hosts: ['a/b']}",
            "line 1: serve.allowed_hosts[0] is 'a/b', expected a name of up to 64 letters, digits, '.', '_' and '-'",
        ),
        ("serve: {port: 70000}", "line 1: serve.port is 70000, expected a port from 0 to 65535 (0: any free port)"),
        ("serve: {max_output: big}", "line 1: serve.max_output is 'big', expected a size such as 64MiB"),
        (
            "serve: {max_output: 1}",
            "line 1: serve.max_output is 1, expected a size such as 64MiB, 4KiB to 1024TiB",
        ),
        (
            "serve: {socket: here}",
            "line 1: serve.socket is 'here', expected auto, off, or the absolute path of a socket",
        ),
        (
            "users: {allow: ann}",
            "line 1: users.allow is 'ann', expected all, or a list of users and groups: [ann, '@lab']",
        ),
        (
            "users: {allow: ['a b']}",
            "line 1: users.allow[0] is 'a b', expected the name of a user, or of a group such as '@lab'",
        ),
        (
            "tenants: {vision: {}}\nusers:\n  tenants: {'@lab': visoin}",
            "line 3: users.tenants.@lab: unknown tenant 'visoin'; known tenants: default, vision",
        ),
        ("limits: {jobs: 0}", "line 1: limits.jobs is 0, expected a number of jobs ≥ 1"),
        (
            "tenants: {vision: {}}\nlimits:\n  tenants: {guests: {}}",
            "line 3: limits.tenants.guests: unknown tenant 'guests'; known tenants: default, vision",
        ),
        ("preemption: often", "line 1: preemption is 'often', expected one of never, consent, always"),
        (
            "tenants: {vision: {}}\npreemption:\n  tenants: {guests: never}",
            "line 3: preemption.tenants.guests: unknown tenant 'guests'; known tenants: default, vision",
        ),
        ("[]", "line 1: the file is a list, expected keys and their values"),
    ],
)
def test_errors_name_line_and_key(text: str, message: str) -> None:
    with pytest.raises(RefoldError) as error:
        parse_config(text, "refold.yaml")
    assert str(error.value) == f"refold.yaml {message}"


def test_an_unknown_policy_or_setting_suggests_the_nearest() -> None:
    with pytest.raises(
        RefoldError, match=r"refold.yaml line 1: policy: unknown policy 'rubik'; did you mean 'rubick'\?"
    ):
        parse_config("policy: rubik", "refold.yaml")
    with pytest.raises(RefoldError, match=r"line 1: policy.settings: unknown field 'dept'; did you mean 'depth'\?"):
        parse_config("policy: {name: easy, settings: {dept: 3}}", "refold.yaml")


@pytest.mark.parametrize(
    ("size", "expected_bytes"),
    [("64MiB", 2**26), ("1GB", 10**9), ("1.5 KiB", None), ("2G", 2 * 10**9), ("10000", 10**4)],
)
def test_sizes_have_units(size: str, expected_bytes: int | None) -> None:
    if expected_bytes is None:
        with pytest.raises(RefoldError, match="expected a size"):
            parse_config(f"serve: {{max_output: {size}}}", "f")
    else:
        assert parse_config(f"serve: {{max_output: {size}}}", "f").serve.max_output == expected_bytes


# The file that `refold init` writes.


class TwoGpus(SlotsMachine):
    def gpus(self) -> list[DetectedGpu]:
        return [
            DetectedGpu(0, "GPU-a", "NVIDIA H200", "H200", 143771),
            DetectedGpu(1, "GPU-b", "NVIDIA H200", "H200", 143771),
        ]


def test_the_template_is_the_default_configuration() -> None:
    assert parse_config(render_template(TwoGpus(0)), "refold.yaml") == Config()
    assert "found on this machine: 2 × NVIDIA H200" in render_template(TwoGpus(0))


def test_without_gpus_the_template_sets_slots() -> None:
    assert parse_config(render_template(SlotsMachine(4)), "refold.yaml") == Config(cluster=ClusterConfig(slots=4))
    chosen = parse_config(render_template(TwoGpus(0), "always"), "refold.yaml")
    assert chosen == Config(preemption=PreemptionRules("always"))


def keys_of(struct: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(struct)]


def uncommented(text: str) -> str:
    """Return the text with every setting uncommented; prose has a space after its '#'."""
    return "\n".join(line[1:] if re.match(r"#(?! \S)", line) else line for line in text.splitlines())


def test_every_commented_setting_is_valid() -> None:
    text = re.sub(r"(?m)^  (slots|nodes):.*\n", "", uncommented(render_template(TwoGpus(0))))
    config = parse_config(text, "refold.yaml")
    assert config.tenants == (Tenant("vision", 4, 8), Tenant("language", 4))
    assert config.watch.idle == Config().watch.idle
    assert config.serve == Config().serve
    assert config.notify.kinds == Config().notify.kinds
    assert config.notify.waiting_long_after == Config().notify.waiting_long_after
    assert config.policy == PolicyConfig("refold", {"fair_share": 1})


@pytest.mark.parametrize(
    "struct",
    [
        Config,
        ClusterConfig,
        TenantConfig,
        TopologyConfig,
        NotifyConfig,
        ServeConfig,
        HttpConfig,
        PolicyConfig,
        WatchConfig,
        IdleRule,
    ],
)
def test_every_key_is_in_the_template_and_in_the_documentation(struct: type[msgspec.Struct]) -> None:
    text = uncommented(render_template(TwoGpus(0)))
    page = (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8")
    for key in keys_of(struct):
        assert re.search(rf"\b{key}:", text), f"{key} is not in the template"
        assert f"`{key}`" in page, f"{key} is not in docs/config.md"


def test_the_documented_file_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8")
    path = tmp_path / "refold.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert read_config(path).limits.tenants["language"].jobs == 10


def test_every_xid_of_a_faulty_gpu_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8")
    bad = [f"| {number} | {xid.text} |" for number, xid in XIDS.items() if xid.verdict == "bad"]
    assert "\n".join(bad) in page


def test_init_writes_a_private_file_and_does_not_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.server.monitor.nvidia.open_driver", lambda: None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    path = tmp_path / "refold.yaml"
    init(tmp_path)
    assert read_config(path) == Config(cluster=ClusterConfig(slots=2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("serve: {port: 1}\n")
    with pytest.raises(BadFile, match="already exists; use --force"):
        init(path)
    assert read_config(path).serve.port == 1
    init(path, force=True)
    assert read_config(path).serve.port == ServeConfig().port
    assert f"wrote {path}" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be written: No such file"):
        write_template(tmp_path / "absent" / "refold.yaml", SlotsMachine(1))


KEYS = st.sampled_from([*keys_of(Config), *keys_of(ClusterConfig), *keys_of(WatchConfig), "vision", "failed", "for"])
VALUES = st.recursive(
    st.sampled_from([None, True, -1, 0, 1e308, float("nan"), "auto", "off", "15m", "easy", "\u00e9\u2028", 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_file_is_valid_or_an_error_with_a_line(tree: dict[str, object]) -> None:
    import yaml

    try:
        assert isinstance(parse_config(yaml.safe_dump(tree), "refold.yaml"), Config)
    except RefoldError as error:
        assert re.match(r"refold.yaml line \d+: ", str(error))


def test_rules_of_preemption_may_differ_by_tenant_and_class() -> None:
    assert parse_config("preemption: always", "x").preemption == PreemptionRules("always")
    text = "preemption: {default: never, tenants: {vision: consent}, classes: {best-effort: always}}"
    rules = parse_config(text, "x").preemption
    assert rules.of("language", "guaranteed") == "never"
    assert rules.of("vision", "guaranteed") == "consent"
    assert rules.of("vision", "best-effort") == "always"
