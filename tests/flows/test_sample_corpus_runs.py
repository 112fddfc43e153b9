"""sample-corpus through the command line, a real Prefect server, and kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support import published_digests, sample_serially

from schemas.corpus import SampleCorpusConfig
from tasks.outputs.validate import validate_path

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two buckets of six files, some texts null, enough bytes for several shards."""
    root = tmp_path_factory.mktemp("corpus")
    rng = random.Random(5)
    for bucket in ("a", "b"):
        for number in range(6):
            texts = [
                None
                if rng.random() < 0.01
                else f"{bucket}{number} {i} " + rng.choice("xyz") * rng.randint(0, 400)
                for i in range(3_000)
            ]
            path = root / bucket / f"sub{number % 2}" / f"part{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"text": texts}), path, row_group_size=500)
    return root


def raw_config(source: Path, output_dir: Path, **changes: Any) -> dict[str, Any]:
    buckets = {"a": {"count": 6_000}, "b": {"count": 100_000}}
    datasets = {"web": {"name": "Web", "source": str(source), "buckets": buckets}}
    return {"output_dir": str(output_dir), "max_rows": 2_000, "datasets": datasets, **changes}


def run_cli(
    tmp_path: Path, raw: dict[str, Any], *options: str, cwd: Path = ROOT, **env: str
) -> dict[str, Any]:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(raw))
    done = subprocess.run(
        [sys.executable, "-m", "flows", "sample-corpus", str(config), "--json", *options],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


KILLED = """
import sys, json
from support import sample_serially
from schemas.corpus import SampleCorpusConfig
sample_serially(SampleCorpusConfig.parse(json.loads(sys.argv[1])))
"""


def test_kill_9_at_any_moment_and_run_again(corpus: Path, tmp_path: Path) -> None:
    reference = raw_config(corpus, tmp_path / "reference")
    sample_serially(SampleCorpusConfig.parse(reference))
    expected = published_digests(tmp_path / "reference" / "latest")
    output_dir = tmp_path / "out"
    raw = raw_config(corpus, output_dir)
    seen: set[str] = set()
    # Killed as soon as one more kind of file has appeared: screening, selecting, writing, publishing.
    for awaited in ("eligible-", "selected.npy", "part-000000", "part-", "manifest.json", "train-00002"):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, json.dumps(raw)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])},
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            names = {path.name for path in output_dir.rglob("*")} if output_dir.exists() else set()
            if any(awaited in name for name in names - seen):
                child.send_signal(signal.SIGKILL)
            time.sleep(0.002)
        child.wait()
        seen = {path.name for path in output_dir.rglob("*")}
        latest = output_dir / "latest"
        assert not latest.is_symlink() or (latest / "manifest.json").is_file()
    sample_serially(SampleCorpusConfig.parse(raw))
    assert published_digests(output_dir / "latest") == expected
    assert validate_path(output_dir).ok
    assert not list((output_dir / "runs").rglob(".tmp-*"))
