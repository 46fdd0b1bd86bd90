"""`matrix refresh` against an index in a folder: nothing new, a new version, a withdrawn one, one that is gone, and failure that changes nothing."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from dsdoctor.cli import command_line
from dsdoctor.errors import UsageError
from dsdoctor.lint import lint
from dsdoctor.matrix import Knowledge, parse_yaml
from dsdoctor.refresh import Metadata, Pip, Refreshed, RefreshError, ranges, refresh, same

TODAY = datetime.date(2027, 1, 5)
COMPANIONS = """# A comment that stays.
matrix: companions
schema: 1
seen: '2026-11-29'
sources:
  metadata: {title: Metadata of the packages}
torch_pairs: []
packages:
  engine:  # the engine
    newest: '1.1'
    note: a note written by hand
    releases:
      - version: '1.1'
        released: '2026-10-01'
        requires_python: '>=3.10'
        requires: {torch: '==2.9.0'}
        tags: {x86_64: any, aarch64: any}
        basis: {source: metadata, confidence: documented, audited: '2026-11-29'}
      # older, and kept
      - version: '1.0'
        released: '2026-09-01'
        requires_python: '>=3.10'
        requires: {torch: '==2.8.0'}
        tags: {x86_64: any, aarch64: any}
        basis: {source: metadata, confidence: documented}
"""
WHEELS = """matrix: nvidia-wheels
schema: 1
seen: '2026-11-29'
sources:
  metadata: {title: Metadata of the packages}
packages:
  nvidia-thing-cu13:
    family: thing
    cuda_major: 13
    newest: '13.0.1'
    releases:
      - {version: '13.0.1', released: '2026-10-01', tag: manylinux_2_27}
    basis: {source: metadata, confidence: documented}
toolkits: []
"""
ENGINE = {"1.0": ("torch==2.8.0", "numpy; extra == 'dev'"), "1.1": ("torch==2.9.0",)}
THING = {"13.0.1": ()}


class Index:
    """A folder that pip takes for an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def release(
        self, name: str, version: str, requires: tuple[str, ...] = (), *, withdrawn: str | None = None, tag: str = "py3-none-any"
    ) -> None:
        plain = name.replace("-", "_")
        package = self.folder / name
        package.mkdir(parents=True, exist_ok=True)
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            "Requires-Python: >=3.10",
            *(f"Requires-Dist: {item}" for item in requires),
        ]
        wheel = package / f"{plain}-{version}-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{plain}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
            archive.writestr(f"{plain}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{plain}-{version}.dist-info/RECORD", "")
        mark = f' data-yanked="{withdrawn}"' if withdrawn is not None else ""
        with (package / "index.html").open("a", encoding="utf-8") as page:
            page.write(f'<a href="{wheel.name}"{mark}>{wheel.name}</a><br>\n')

    def releases(self, name: str, versions: Mapping[str, tuple[str, ...]], tag: str = "py3-none-any") -> None:
        for version, requires in versions.items():
            self.release(name, version, requires, tag=tag)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    monkeypatch.setenv("PIP_RETRIES", "0")
    return Index(tmp_path / "index")


@pytest.fixture
def forked_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip in forks of this process, which has imported it once: a start for each question takes most of the time of a test."""
    from pip._internal.cli.main import main
    from pip._internal.commands import create_command

    for name in ("index", "install"):
        create_command(name)

    def run(self: Pip, arguments: Sequence[str]) -> tuple[int, str, str]:
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                code = 70
                try:
                    sys.stdout, sys.stderr = output, errors
                    os.environ.update(PIP_CONSTRAINT=os.devnull, PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
                    code = main([*arguments])
                finally:
                    output.flush()
                    errors.flush()
                    os._exit(code)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            errors.seek(0)
            return status, output.read(), errors.read()

    monkeypatch.setattr(Pip, "_run", run)


@pytest.fixture
def matrices(tmp_path: Path) -> Path:
    folder = tmp_path / "matrices"
    folder.mkdir()
    (folder / "companions.yaml").write_text(COMPANIONS, encoding="utf-8")
    (folder / "nvidia-wheels.yaml").write_text(WHEELS, encoding="utf-8")
    return folder


def refreshed(matrices: Path, *names: str, write: bool = True) -> Refreshed:
    return refresh(names, directory=str(matrices), python=sys.executable, write=write, today=TODAY)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.mark.usefixtures("forked_pip")
def test_known_versions_change_nothing_and_a_source_only_release_is_not_built_to_be_read(index: Index, matrices: Path) -> None:
    index.releases("engine", ENGINE)
    index.releases("nvidia-thing-cu13", THING, "py3-none-manylinux_2_27_x86_64")
    (index.folder / "engine" / "engine-1.2.tar.gz").write_bytes(b"not even an archive")
    with (index.folder / "engine" / "index.html").open("a", encoding="utf-8") as page:
        page.write('<a href="engine-1.2.tar.gz">engine-1.2.tar.gz</a>\n')
    before = contents(matrices)
    found = refreshed(matrices)
    assert [(change.version, change.kind) for change in found.changes] == [("1.2", "unread")]
    assert (found.written, found.packages, found.versions) == ((), 2, 3)
    assert contents(matrices) == before


@pytest.mark.usefixtures("forked_pip")
def test_what_the_index_has_no_more_is_told_and_stays_and_the_rest_is_compared(index: Index, matrices: Path) -> None:
    index.releases("engine", {"1.1": ENGINE["1.1"], "1.2": ("torch==2.10.0",)})
    found = refreshed(matrices)
    assert [(change.package, change.version, change.kind) for change in found.changes] == [
        ("engine", "1.0", "gone"),
        ("engine", "1.2", "new"),
        ("nvidia-thing-cu13", "*", "gone"),
    ]
    rows = parse_yaml(matrices / "companions.yaml")[1]["packages"]["engine"]["releases"]
    assert [row["version"] for row in rows] == ["1.2", "1.1", "1.0"]
    assert (matrices / "nvidia-wheels.yaml").read_text(encoding="utf-8") == WHEELS
    with pytest.raises(RefreshError, match="pip finds no release of nvidia-thing-cu13"):
        refreshed(matrices, "nvidia-thing-cu13")


@pytest.mark.usefixtures("forked_pip")
def test_a_new_version_becomes_a_row_and_what_was_written_by_hand_stays(index: Index, matrices: Path) -> None:
    index.releases("engine", {**ENGINE, "1.2": ("torch==2.10.0", "unheard-of>=1", "Engine[all]; extra == 'x'")})
    index.releases("nvidia-thing-cu13", {**THING, "13.1.0": ()}, "py3-none-manylinux_2_28_x86_64.manylinux_2_35_x86_64")
    shown = refreshed(matrices, "engine", write=False)
    assert contents(matrices) == {"companions.yaml": COMPANIONS, "nvidia-wheels.yaml": WHEELS}
    assert "torch==2.10.0" in shown.changes[0].details
    found = refreshed(matrices)
    assert [(change.package, change.version, change.kind) for change in found.changes] == [
        ("engine", "1.2", "new"),
        ("nvidia-thing-cu13", "13.1.0", "new"),
    ]
    assert len(found.written) == 2
    assert lint(matrices) == ()
    text, data = parse_yaml(matrices / "companions.yaml")
    engine = data["packages"]["engine"]
    assert [row["version"] for row in engine["releases"]] == ["1.2", "1.1", "1.0"]
    assert engine["releases"][0]["requires"] == {"torch": "==2.10.0"}
    assert engine["releases"][0]["basis"] == {"source": "metadata", "confidence": "documented"}
    assert engine["newest"] == "1.2"
    assert engine["note"] == "a note written by hand"
    assert data["seen"] == "2027-01-05"
    assert "# A comment that stays." in text
    assert "# the engine" in text
    assert [line for line in COMPANIONS.splitlines() if line not in text.splitlines()] == ["seen: '2026-11-29'", "    newest: '1.1'"]
    wheels = parse_yaml(matrices / "nvidia-wheels.yaml")[1]["packages"]["nvidia-thing-cu13"]["releases"]
    assert wheels[0] == {"version": "13.1.0", "tag": "manylinux_2_28"}


def test_a_row_that_disagrees_is_corrected_in_its_place(index: Index, matrices: Path) -> None:
    index.releases("engine", {**ENGINE, "1.1": ("torch==2.9.1",)})
    found = refreshed(matrices, "engine")
    assert [(change.kind, change.details) for change in found.changes] == [("changed", ("requires.torch: ==2.9.0 → ==2.9.1",))]
    assert "      # older, and kept\n      - version: '1.0'" in (matrices / "companions.yaml").read_text(encoding="utf-8")
    row = parse_yaml(matrices / "companions.yaml")[1]["packages"]["engine"]["releases"][0]
    assert row["requires"] == {"torch": "==2.9.1"}
    assert (row["released"], row["basis"]["audited"]) == ("2026-10-01", "2026-11-29")
    assert refreshed(matrices, "engine").changes == ()


@pytest.mark.usefixtures("forked_pip")
@pytest.mark.skipif(
    Version(importlib.metadata.version("pip")) < Version("23.3"), reason="this pip does not say that a release was withdrawn"
)
def test_a_withdrawn_version_is_reported_and_marked(index: Index, matrices: Path) -> None:
    index.release("engine", "1.0", ENGINE["1.0"])
    index.release("engine", "1.1", ENGINE["1.1"], withdrawn="broken")
    found = refreshed(matrices, "engine")
    assert [(change.version, change.kind) for change in found.changes] == [("1.1", "withdrawn")]
    assert Knowledge((matrices,)).matrix("companions").release("engine", "1.1").yanked
    assert refreshed(matrices, "engine").changes == ()


@pytest.mark.parametrize("address", ["file:///nowhere/at/all", "http://127.0.0.1:9"])
def test_an_index_that_does_not_answer_is_an_error_and_nothing_changes(
    index: Index, matrices: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", address)
    before = contents(matrices)
    with pytest.raises(RefreshError, match="no file was changed"):
        refreshed(matrices)
    assert contents(matrices) == before


@pytest.mark.usefixtures("forked_pip")
def test_failure_halfway_leaves_every_file(index: Index, matrices: Path) -> None:
    index.releases("engine", {**ENGINE, "1.2": ("torch==2.10.0",)})
    index.releases("nvidia-thing-cu13", THING)
    next((index.folder / "nvidia-thing-cu13").glob("*.whl")).write_bytes(b"no zip")
    before = contents(matrices)
    with pytest.raises(RefreshError, match="no file was changed"):
        refreshed(matrices)
    assert contents(matrices) == before


def test_errors_of_the_user(matrices: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown package 'engin': did you mean engine"):
        refreshed(matrices, "engin")
    with pytest.raises(RefreshError, match=r"holds none of torch\.yaml"):
        refreshed(tmp_path)
    (matrices / "index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RefreshError, match="compiled"):
        refreshed(matrices)
    result = CliRunner().invoke(command_line(), ["matrix", "refresh", "--directory", str(tmp_path), "--format", "json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["exit_code"] == 2


def test_an_interpreter_without_pip_is_named(matrices: Path, tmp_path: Path) -> None:
    with pytest.raises(RefreshError, match="did not answer"):
        refresh((), directory=str(matrices), python=str(tmp_path / "python"))


def test_requirements_hold_for_one_processor_and_python() -> None:
    requires = (
        "triton==2.3.1; platform_machine == 'x86_64' and python_version < '3.12'", "numpy>=1", "nvidia-x==1; extra == 'all'", "win; sys_platform == 'win32'", "?",
    )  # fmt: skip
    assert ranges(requires) == {"numpy": ">=1"}
    assert ranges(requires, python="3.11") == {"triton": "==2.3.1", "numpy": ">=1"}
    assert ranges(requires, extra="all") == {"nvidia-x": "==1"}
    assert same(">=1,<2", "<2,>=1")
    assert not same(">=1", ">=1.1")
    assert Metadata(filename="triton-3.7.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl").tags == ("cp312", "manylinux_2_27")
    assert Metadata(filename="vllm-0.33.0-cp38-abi3-manylinux2014_aarch64.whl").tags == ("cp38-abi3", "manylinux2014")
