"""`matrix show`, `matrix lint` and `--matrix`: rows found as users name them, problems with file and line, overlays in force or refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsdoctor.cli import command_line
from dsdoctor.errors import UsageError
from dsdoctor.facts import SCHEMA, Gpu, KernelDriver, Origin, Sections, Snapshot, known
from dsdoctor.lint import agreement, lint
from dsdoctor.matrix import Knowledge, matrix_names
from dsdoctor.matrix_commands import look_up, open_matrix, rows
from dsdoctor.rows import Basis
from dsdoctor.sources import replay
from dsdoctor.versions import ComputeCapability

RUN = CliRunner()
HEAD = "matrix: gpus\nschema: 1\nseen: '2026-11-30'\nsources:\n  ours: {title: our own list}\n"
ROW = """products:
  - product: H200 SXM
    name_regex: 'H200'
    compute_capability: '9.0'
    architecture: Hopper
    product_class: datacenter
    min_driver: '590.10'
    capability_basis: {source: ours, confidence: measured}
    basis: {source: ours, confidence: measured}
"""


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = RUN.invoke(command_line(), list(arguments))
    return result.exit_code, result.stdout, result.stderr


# --- show -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", matrix_names())
def test_every_matrix_can_be_shown_and_every_row_found_by_its_key(name: str) -> None:
    code, output, _ = invoke("matrix", "show", name)
    assert code == 0
    assert name in output
    assert max(map(len, output.splitlines())) <= 130
    table = open_matrix(name, Knowledge())
    for item in rows(table):
        assert item.row in [found.row for found in look_up(table, item.key)], item.key


def test_one_row_with_its_basis_and_sources() -> None:
    code, output, _ = invoke("matrix", "show", "torch", "2.11.0")
    assert code == 0
    for text in ("2.11.0", "x86 64", "nvidia-cudnn-cu13==9.19.0.56", "basis: documented", "source: Metadata of the published torch wheels"):
        assert text in output
    assert "error at most" in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpus", "NVIDIA H100 80GB HBM3"), "H100 SXM5"),
        (("companions", "vllm==0.33.0"), "torch: ==2.14.0"),
        (("companions", "vllm 0.33.0"), "torch: ==2.14.0"),
        (("driver_branches_matrix", "580"), "branch: 580"),
        (("kernel-libraries", "deepep"), "min nccl: 2.30.4"),
        (("error-codes", "802"), "802"),
        (("nccl", "2.27.3"), "2.27.3"),
        (("deepseek-models", "v3 bf16"), "bytes per token: 70272"),
        (("links", "PXB"), "several PCIe bridges"),
    ],
)
def test_rows_by_the_names_that_users_have(arguments: tuple[str, str], says: str) -> None:
    code, output, errors = invoke("matrix", "show", *arguments)
    assert code == 0, errors
    assert says in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("torhc",), "unknown matrix 'torhc': did you mean torch?"),
        (("torch", "9.9.9"), "newer than this knowledge"),
        (("companions", "vllm==7.0.0"), "the newest row is vllm==0.33.0"),
        (("torch", "2.11.5"), "did you mean"),
        (("gpus", "NVIDIA H900"), "did you mean"),
    ],
)
def test_what_is_not_there_names_the_nearest_or_the_date(arguments: tuple[str, ...], says: str) -> None:
    code, output, errors = invoke("matrix", "show", *arguments)
    assert (code, output) == (2, "")
    assert says in errors


def test_json_is_one_document_also_for_errors() -> None:
    code, output, _ = invoke("matrix", "show", "cuda-toolkits", "13.0.2", "--format", "json")
    document = json.loads(output)
    assert (code, document["schema"], document["matrix"]) == (0, "dsdoctor.matrix/1", "cuda-toolkits")
    assert document["rows"][0]["row"]["version"] == "13.0.2"
    assert document["rows"][0]["row"]["basis"]["sources"]
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", document["digest"])
    code, output, _ = invoke("matrix", "show", "phones", "--format", "json")
    assert (code, json.loads(output)["exit_code"]) == (2, 2)


# --- lint -------------------------------------------------------------------------------------------------------------


def test_a_sound_overlay_has_no_problems(tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_text(HEAD + ROW, encoding="utf-8")
    assert invoke("matrix", "lint", str(tmp_path))[0] == 0
    assert invoke("matrix", "lint", str(tmp_path / "gpus.yaml"))[0] == 0


def test_every_problem_of_a_file_is_told_with_line_and_key(tmp_path: Path) -> None:
    text = (
        (HEAD + ROW)
        .replace("'590.10'", "590.1")
        .replace("source: ours, confidence: measured}\n    basis", "source: theirs, confidence: sure}\n    basis")
    )
    text = text.replace("name_regex: 'H200'", "name_regex: 'H200('").replace(
        "architecture: Hopper", "architecture: Hoper\n    colour: green"
    )
    (tmp_path / "gpus.yaml").write_text(text + "  - product: H200 SXM\n", encoding="utf-8")
    code, output, _ = invoke("matrix", "lint", str(tmp_path))
    assert code == 2
    file = tmp_path / "gpus.yaml"
    for line, says in (
        (11, "products[0].colour: unknown key"),
        (13, "products[0].min_driver: expected text, found 590.1"),
        (14, "products[0].capability_basis.source: no source has the id 'theirs'"),
        (14, "products[0].capability_basis.confidence: expected one of"),
        (16, "products[1].basis: missing"),
        (16, "products[1].product: an earlier row describes the same thing"),
    ):
        assert f"{file}:{line}: {says}" in output, output


FAULTS = (
    ("'590.10'", "'5x'", "expected a driver version"),
    ("'9.0'", "'ninety'", "expected a compute capability"),
    ("'H200'", "'(H+)+'", "repeat inside a repeat"),
    ("'H200'", "'H200['", "not a pattern"),
    ("Hopper", "Hoper", "expected one of Fermi"),
    ("confidence: measured}\n    basis", "confidence: measured, audited: '2026-13-01'}\n    basis", "expected a date"),
    ("confidence: measured}\n    basis", "confidence: measured, audited: '2026-12-24'}\n    basis", "later than the date of the file"),
    ("confidence: measured}\n    basis", "confidence: measured, at_most: fatal}\n    basis", "expected warning or info"),
    ("    product_class", "    note: ''\n    product_class", "empty: leave the key out"),
    ("    product_class", "    note: see /home/me/list\n    product_class", "path of one machine"),
    ("    product_class", "    note: https://example.org/simple\n    product_class", "address of a package index"),
    ("    product_class", "    product_class: geforce\n    product_class", "stands twice"),
    ("    product_class", "\tproduct_class", ""),
    ("seen: '2026-11-30'", "seen: yesterday", "expected a date such as"),
    ("schema: 1", "schema: 7", "expected 1"),
    ("products:", "prodcts:", "unknown key"),
)


@pytest.mark.parametrize(("good", "bad", "says"), FAULTS)
def test_faults_of_meaning(tmp_path: Path, good: str, bad: str, says: str) -> None:
    (tmp_path / "gpus.yaml").write_text((HEAD + ROW).replace(good, bad, 1), encoding="utf-8")
    problems = [str(problem) for problem in lint(tmp_path)]
    assert any(says in problem for problem in problems), problems
    assert all(re.search(r"gpus\.yaml:\d+: ", problem) for problem in problems)


def test_a_pattern_must_match_its_example_in_linear_time(tmp_path: Path) -> None:
    head = HEAD.replace("gpus", "engine-pitfalls")
    row = """pitfalls:
  - id: one
    affects: {engines: all}
    symptom: a text
    log_regex: 'abc'
    example: xyz
    cause: a text
    fix: a text
    check: a text
    status: open
    basis: {source: ours, confidence: community}
"""
    file = tmp_path / "engine-pitfalls.yaml"
    file.write_text(head + row, encoding="utf-8")
    assert [problem.text for problem in lint(file)] == ["does not match its own example"]
    slow = row.replace("'abc'", "'a.*b.*c'").replace("xyz", "aaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbc")
    file.write_text(head + slow, encoding="utf-8")
    assert [problem.text for problem in lint(file)] == ["slower than linear on a long line"]


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe\x00", b"a: [", b"a: &x [*x]"])
def test_nonsense_is_a_problem_not_a_fault_of_ours(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gpus.yaml").write_bytes(content)
    assert len(lint(tmp_path)) == 1
    assert invoke("matrix", "lint", str(tmp_path))[0] == 2


def test_files_and_folders_that_are_not_matrices(tmp_path: Path) -> None:
    assert "no matrix file" in str(lint(tmp_path)[0])
    (tmp_path / "phones.yaml").write_text("a: 1\n", encoding="utf-8")
    assert "no matrix is called 'phones'; known are companions" in str(lint(tmp_path)[0])
    assert "cannot be read" in str(lint(tmp_path / "gpus.yaml")[0])
    code, output, _ = invoke("matrix", "lint", str(tmp_path), "--format", "json")
    document = json.loads(output)
    assert (code, document["schema"], len(document["problems"])) == (2, "dsdoctor.matrix-lint/1", 1)


# --- overlays ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path: Path) -> str:
    sections = Sections(
        gpus=known((Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)), kernel_driver=known(KernelDriver(version="580.95.05"))
    )
    path = str(tmp_path / "node.json")
    replay.save(Snapshot(schema=SCHEMA, taken_at="2026-12-01T10:00:00Z", origin=Origin(kind="live", label="node"), sections=sections), path)
    return path


def test_an_overlay_decides_and_is_named_in_the_report(tmp_path: Path, recording: str) -> None:
    overlay = tmp_path / "site"
    overlay.mkdir()
    (overlay / "gpus.yaml").write_text(HEAD + ROW, encoding="utf-8")
    only = ("--only", "driver.too-old-for-gpu", "--format", "json")
    plain = json.loads(invoke("replay", recording, *only)[1])
    ours = json.loads(invoke("replay", recording, *only, "--matrix", str(overlay))[1])
    assert not plain["diagnosis"]
    assert "590.10" in json.dumps(ours["diagnosis"])
    assert plain["knowledge"]["digest"] != ours["knowledge"]["digest"]
    assert "H200 SXM" in invoke("matrix", "show", "gpus", "H200", "--matrix", str(overlay))[1]
    assert invoke("diff", recording, recording, "--matrix", str(overlay))[0] == 0


def test_a_malformed_overlay_stops_the_run_with_every_problem(tmp_path: Path, recording: str) -> None:
    overlay = tmp_path / "site"
    overlay.mkdir()
    (overlay / "gpus.yaml").write_text((HEAD + ROW).replace("'590.10'", "590.1"), encoding="utf-8")
    for command in (("replay", recording), ("diff", recording, recording), ("matrix", "show", "gpus")):
        code, output, errors = invoke(*command, "--matrix", str(overlay))
        assert (code, output) == (2, "")
        assert "gpus.yaml:12: products[0].min_driver: expected text, found 590.1" in errors
    assert invoke("matrix", "show", "gpus", "H200 SXM")[0] == 0
    code, _, errors = invoke("replay", recording, "--matrix", str(tmp_path / "nowhere"))
    assert code == 2
    assert "wants a directory" in errors


# --- the stack matrices -----------------------------------------------------------------------------------------------


def test_matrices_agree_with_each_other() -> None:
    assert agreement(Knowledge()) == ()


def test_kernel_libraries() -> None:
    libraries = Knowledge().matrix("kernel-libraries")
    fa3 = libraries.requirement("fa3")
    assert [fa3.serves(ComputeCapability(*numbers)) for numbers in ((9, 0), (12, 0), (8, 0))] == [True, False, None]
    assert [row.line for row in libraries.requirements_of("DeepEP")] == ["2.x", "1.x"]
    newest, before = libraries.requirements_of("FlashMLA")
    assert [row.serves(ComputeCapability(9, 0)) for row in (newest, before)] == [False, True]
    assert not newest.basis.may_carry_error
    assert not libraries.requirement("deepgemm.2026-09").basis.may_carry_error
    assert libraries.requirement("deepgemm").basis.may_carry_error
    for row in libraries.import_failures:
        assert libraries.failure_in(row.example) is row
    assert libraries.failure_in("all is well") is None
    assert libraries.torch_api("2.11.0+cu130").attention_registry == ("FA3", "FA4")


def test_packages_that_own_the_same_directory() -> None:
    packages = Knowledge().matrix("kernel-packages")
    assert "sglang-kernel" in packages.sharing("sgl-kernel")
    assert packages.sharing("flash-attn-4") == ("flash-attn",)
    assert packages.sharing("transformer-engine") == ()
    assert packages.sharing("unheard-of") == ()


def test_pitfalls_are_warnings_at_most_and_found_in_logs() -> None:
    pitfalls = Knowledge().matrix("engine-pitfalls")
    assert [row.rank for row in pitfalls.pitfalls[:15]] == list(range(1, 16))
    assert [row.id for row in pitfalls.in_log("ImportError: undefined symbol: ncclGetLsaDevicePointer")] == ["pit.nccl_downgrade"]
    assert not any(row.basis.may_carry_error for row in pitfalls.pitfalls)
    assert not pitfalls.pitfall("pit.custom_all_reduce_0271").basis.may_carry_warning


def test_models() -> None:
    models = Knowledge().matrix("deepseek-models")
    assert models.bytes_per_token("v3", "bf16") == 61 * (512 + 64) * 2
    assert models.bytes_per_token("v41-flash", "fp4_rows_mxfp4_index") == 890
    assert models.bytes_per_token("v5", "bf16") is None
    assert models.note("v4.note") is None, "superseded: V4 can be planned"
    assert "carry DeepGEMM inside" in " ".join(models.note("vllm.v32").points)
    assert {row.family for row in models.releases} == {"v3", "v32", "v4", "v41", "side", "quantised"}
    assert [row.verdict for row in models.placements if row.node == "8x H100/H800 80G"] == ["no"]
    assert Knowledge().matrix("links").path("NV18").name == "NV#"


def test_every_basis_of_a_row_that_was_read_once_carries_a_warning_at_most() -> None:
    for item in rows(Knowledge().matrix("deepseek-models")):
        basis: Basis | None = getattr(item.row, "basis", None)
        if basis and item.key.startswith(("arch.", "v4", "v41")) and not basis.reread:
            assert not basis.may_carry_error, item.key


def test_look_up_refuses_an_empty_matrix_name() -> None:
    with pytest.raises(UsageError):
        open_matrix("", Knowledge())
