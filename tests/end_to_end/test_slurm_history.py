"""The first hour of a cluster owner with a Slurm history: an export as sites have it, compared at once."""

from __future__ import annotations

import random
from pathlib import Path

from typed_shell import Shell

COLUMNS = "JobID|JobName|User|Account|State|Submit|Start|End|Elapsed|Timelimit|NNodes|NCPUS|ReqMem|ReqTRES|AllocTRES"
GPU_NAMES = ("a100", "nvidia_a100-sxm4-80gb", "A100-SXM4-80GB")


def clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    return f"2026-05-{1 + days:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def row(job_id: str, name: str, submitted: int, wait: int, seconds: int, gpus: int, gpu: str, state: str) -> str:
    elapsed = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    tres = f"cpu={8 * gpus},gres/gpu:{gpu}={gpus},gres/gpu={gpus},mem={64 * gpus}G,node=1"
    cells = [job_id, name, "ann", "nlp", state, clock(submitted), clock(submitted + wait)]
    cells += [clock(submitted + wait + seconds), elapsed, "12:00:00", "1", str(8 * gpus), f"{64 * gpus}G", tres, tres]
    return "|".join(cells)


def ugly_export() -> str:
    """Return accounting rows with everything that sites have: steps, `|` in names, requeued and heterogeneous jobs."""
    rng = random.Random(7)
    rows = [COLUMNS]
    for number in range(60):
        seconds, gpus = rng.randint(60, 20_000), rng.choice([1, 1, 2, 4, 8])
        name = "grid|lr=0.1|wd=0" if number % 9 == 0 else "train"
        job_id = f"{1000 + number}+0" if number % 11 == 0 else str(1000 + number)
        gpu = GPU_NAMES[number % len(GPU_NAMES)]
        if number % 13 == 0:
            rows.append(row(job_id, name, 900 * number, 30, 45, gpus, gpu, "REQUEUED"))
        rows.append(row(job_id, name, 900 * number, 60, seconds, gpus, gpu, "COMPLETED"))
        rows.append(f"{job_id}.batch|batch||nlp|COMPLETED||||00:01:00||1|8||cpu=8|cpu=8")
    rows.insert(20, row("1999", "broken", 5000, 60, 100, 1, "a100", "COMPLETED").replace("00:01:40", "soon"))
    rows.append("2000|pending|ann|nlp|PENDING|2026-05-01T09:00:00|Unknown|Unknown|00:00:00|01:00:00|1|8|4G|gres/gpu=1|")
    return "\n".join(rows) + "\n"


def test_an_export_with_everything_that_sites_have_is_compared_by_one_command(tmp_path: Path) -> None:
    (tmp_path / "history.txt").write_text(ugly_export())
    with Shell(tmp_path) as shell:
        compared = shell.succeed("refold compare history.txt --cluster 2x8:A100-80GB --policies fifo,easy,refold")
        table = {line.split()[0]: line for line in compared.lines if line.split()[0] in ("fifo", "easy", "refold")}
        assert table.keys() == {"fifo", "easy", "refold"}
        assert "did not finish" not in compared.text
        assert "skipped 1 row of history" in compared.words
        assert "nvidia_a100-sxm4-80gb is A100-80GB (20 jobs)" in compared.words
        assert (tmp_path / "refold-compare" / "report.html").stat().st_size > 50_000

        # Another command with a report of its own keeps this one.
        before = (tmp_path / "refold-compare" / "report.html").read_bytes()
        shell.succeed("refold compare --limit 20 --policies fifo,las --out other")
        assert (tmp_path / "refold-compare" / "report.html").read_bytes() == before

        shell.succeed("refold simulate history.txt --cluster 2x8:A100-80GB --policy easy --journal easy.jsonl")
        explained = shell.succeed("refold why easy.jsonl 1005")
        assert "submitted" in explained.text and "finished" in explained.text

        wrong = shell.run("refold compare histroy.txt")
        assert (wrong.status, len(wrong.lines)) == (2, 1), wrong.text
        assert "histroy.txt" in wrong.text
