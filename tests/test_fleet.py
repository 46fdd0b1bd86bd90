"""Many reports, one answer: what is odd is found, what is no report is named, and nothing of a report is trusted."""

from __future__ import annotations

import copy
import csv
import datetime
import gzip
import importlib.util
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from dsdoctor import cli
from dsdoctor.checks import CHECKS
from dsdoctor.diagnose import diagnose
from dsdoctor.errors import InputError, UsageError
from dsdoctor.findings import Severity
from dsdoctor.fleet import compare, store
from dsdoctor.fleet.answer import Fleet, Problem
from dsdoctor.fleet.names import folded
from dsdoctor.matrix import Knowledge
from dsdoctor.render import fleet as page
from dsdoctor.render import fleet_html
from dsdoctor.render import json as json_render
from dsdoctor.sources import replay

pytest.importorskip("duckdb")
zstandard = pytest.importorskip("zstandard")

ROOT = Path(__file__).resolve().parents[1]
TODAY = datetime.date(2026, 11, 29)
KNOWLEDGE = Knowledge()
LIMITS = KNOWLEDGE.matrix("fleet")
Report = dict[str, Any]


def _benchmark(name: str) -> Any:
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


generator = _benchmark("fleet_generator")
judge = _benchmark("fleet")


@pytest.fixture(scope="module")
def base() -> Report:
    """The report of a shipped example."""
    report = diagnose(replay.load("example:h200x4-healthy"), KNOWLEDGE, CHECKS, today=TODAY)
    document: Report = json.loads(json_render.render(report))
    return document


def node(base: Report, label: str, **changes: Any) -> Report:
    """A live report of that label with other values at these paths: facts__platform__value__kernel_release=..."""
    report = copy.deepcopy(base)
    report["origin"] = {"kind": "live", "label": label, "made_by": ""}
    for path, value in changes.items():
        *way, last = path.split("__")
        place = report
        for step in way:
            place = place[int(step)] if step.isdigit() else place[step]
        place[last] = value
    return report


def lines(reports: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(report)}\n" for report in reports)


def merged(*names: Path | str, group_by: Sequence[str] = ("product",)) -> Fleet:
    with compare.store(LIMITS) as reports:
        reports.add([str(name) for name in names])
        return compare.compare(reports, KNOWLEDGE, list(group_by), TODAY)


def merge_of(folder: Path, reports: Sequence[Mapping[str, Any]], group_by: Sequence[str] = ("product",)) -> Fleet:
    path = folder / "fleet.ndjson"
    path.write_text(lines(reports), encoding="utf-8")
    return merged(path, group_by=group_by)


def problem(fleet: Fleet, check: str, subject: str | None = None) -> Problem:
    (found,) = [item for item in fleet.problems if item.check == check and subject in (None, item.subject)]
    return found


def command(*arguments: str, stdin: str | bytes = "") -> Any:
    return CliRunner().invoke(cli.command_line(["fleet"]), ["fleet", "merge", *arguments], input=stdin)


# --- the acceptance ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted_fleet(base: Report, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]]]:
    """300 whole reports with 37 oddities of 12 kinds."""
    folder = tmp_path_factory.mktemp("planted")
    planted = generator.write(folder, base, 300, 37)
    assert {item["kind"] for item in planted} == set(generator.KINDS)
    assert len(generator.KINDS) == 12
    return folder, planted


@pytest.fixture(scope="module")
def planted_answer(planted_fleet: tuple[Path, list[dict[str, str]]]) -> Fleet:
    return merged(planted_fleet[0] / "reports")


def test_every_planted_oddity_is_found_and_nothing_else(planted_fleet: Any, planted_answer: Fleet) -> None:
    answer = json_render.complete(planted_answer)
    assert judge.judged(answer, planted_fleet[1]) == (37, 0)


def test_the_generator_and_the_detector_share_nothing() -> None:
    assert "import dsdoctor" not in (ROOT / "benchmarks/fleet_generator.py").read_text()
    assert "from dsdoctor" not in (ROOT / "benchmarks/fleet_generator.py").read_text()


def test_the_answer_is_as_its_schema_says(planted_answer: Fleet) -> None:
    schema = json.loads(files("dsdoctor").joinpath("fleet.schema.json").read_text())
    document = json.loads(page.render_json(planted_answer))
    jsonschema.Draft202012Validator(schema).validate(document)
    assert set(document) == set(schema["properties"])
    for name, part in (("nodes", "node"), ("problems", "problem"), ("groups", "group"), ("work", "work")):
        assert set(document[name][0]) == set(schema["$defs"][part]["properties"])


def test_a_fleet_without_oddities_is_healthy(base: Report, tmp_path: Path) -> None:
    fleet = merge_of(tmp_path, [json.loads(text) for _, _, text in generator.fleet(base, 40, 0, indent=None)])
    assert (fleet.verdict, fleet.counts.errors, fleet.counts.warnings) == ("healthy", 0, 0)
    assert "No node differs" in page.render(fleet, width=80)


# --- input ------------------------------------------------------------------------------------------------------------


def test_reports_are_read_in_every_packing(base: Report, tmp_path: Path) -> None:
    def text(label: str) -> bytes:
        return json.dumps(node(base, label), indent=2).encode()

    inner = tmp_path / "inner" / "deeper"
    inner.mkdir(parents=True)
    (inner / "a.json").write_bytes(text("a"))
    (inner / "b.json.gz").write_bytes(gzip.compress(text("b")))
    (inner / "c.json.zst").write_bytes(zstandard.compress(text("c")))
    (inner / "d.ndjson").write_text(lines([node(base, "d1"), node(base, "d2")]))
    (inner / "e.jsonl.gz").write_bytes(gzip.compress(lines([node(base, "e1"), node(base, "e2")]).encode()))
    (inner / "f.jsonl.zst").write_bytes(
        zstandard.compress(lines([node(base, "f1")]).encode()) + zstandard.compress(lines([node(base, "f2")]).encode())
    )
    (inner / "printed one after another.json").write_bytes(text("g1") + b"\n" + text("g2"))
    (inner / "notes.txt").write_text("not looked at")
    fleet = merged(tmp_path)
    assert [item.name for item in fleet.nodes] == ["a", "b", "c", "d1", "d2", "e1", "e2", "f1", "f2", "g1", "g2"]
    assert fleet.counts.rejected == 0


def test_standard_input_is_read(base: Report) -> None:
    found = command("-", "--format", "json", stdin=lines([node(base, "a"), node(base, "b")]))
    assert [item["name"] for item in json.loads(found.stdout)["nodes"]] == ["a", "b"]


def test_a_large_stream_is_read_line_by_line(base: Report, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    path.write_text(lines([node(base, f"n{number}") for number in range(12)]))
    assert path.stat().st_size > 1 << 20
    assert folded(item.name for item in merged(path).nodes) == "n[0-11]"


def test_parquet_is_written_and_read_again(base: Report, tmp_path: Path) -> None:
    source, parquet = tmp_path / "fleet.ndjson", tmp_path / "fleet.parquet"
    source.write_text(lines([node(base, "n1"), node(base, "n2"), node(base, "n3", facts__torch_build__value__version="2.10.0")]))
    assert command(str(source), "-o", str(parquet)).exit_code == 0
    first, again = merged(source), merged(parquet)
    assert again.problems == first.problems
    assert again.groups == first.groups
    later = tmp_path / "later.ndjson"
    later.write_text(lines([node(base, "n4")]))
    assert merged(parquet, later).counts.nodes == 4


def test_a_node_is_called_by_its_label_else_by_its_file(base: Report, tmp_path: Path) -> None:
    (tmp_path / "node7.json").write_text(json.dumps(node(base, "this machine")))
    (tmp_path / "node8.json").write_text(json.dumps(base))
    (tmp_path / "x.json").write_text(json.dumps(node(base, "rack 3, node 9")))
    assert [item.name for item in merged(tmp_path).nodes] == ["node7", "node8", "rack 3, node 9"]


def test_reports_of_other_versions_are_read_as_far_as_they_go(base: Report, tmp_path: Path) -> None:
    newer = node(base, "new", dsdoctor="0.9.0", something_new={"a": 1}, facts__gravity={"state": "known", "value": 9.81})
    newer["facts"]["gpus"]["value"][0]["colour"] = "green"
    older = {
        "schema": "dsdoctor.report/1",
        "dsdoctor": "0.0.1",
        "origin": {"kind": "live", "label": "old"},
        "verdict": "healthy",
        "facts": {"platform": 7},
    }
    fleet = merge_of(tmp_path, [newer, older, node(base, "now")])
    assert [(item.name, item.verdict) for item in fleet.nodes] == [("new", "healthy"), ("now", "healthy"), ("old", "healthy")]
    assert fleet.versions == {"0.0.1": 1, "0.1.0": 1, "0.9.0": 1}
    assert any("different dsdoctor versions" in notice for notice in fleet.notices)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_bad_input(base: Report, tmp_path: Path) -> Path:
    text = json.dumps(node(base, "good"), indent=2)
    (tmp_path / "good.json").write_text(text)
    (tmp_path / "half.json").write_text(text[: len(text) // 2])
    (tmp_path / "half.json.gz").write_bytes(gzip.compress(text.encode())[:5000])
    (tmp_path / "half.json.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"damaged" * 9)
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "foreign.json").write_text('{"schema": "other/1", "$(reboot)": "<script>"}')
    (tmp_path / "newer.json").write_text('{"schema": "dsdoctor.report/2"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "bytes.json").write_bytes(b'{"schema": "\xff\xfe"}')
    (tmp_path / "recording.json").write_bytes(gzip.decompress(files("dsdoctor.examples").joinpath("no-driver.json.gz").read_bytes()))
    (tmp_path / "mixed.ndjson").write_text(
        f"{lines([node(base, 'm1')])}nonsense\n{lines([node(base, 'm2')])[:900]}\n{lines([node(base, 'm3')])}"
    )
    (tmp_path / "no.parquet").write_bytes(b"PAR1 not really")
    return tmp_path


def test_what_is_no_report_is_named_and_left_out(with_bad_input: Path) -> None:
    fleet = merged(with_bad_input)
    assert [item.name for item in fleet.nodes] == ["good", "m1", "m3"]
    reasons = {source.rpartition("/")[2]: item.reason for item in fleet.rejected for source in item.sources}
    assert fleet.counts.rejected == sum(item.count for item in fleet.rejected) == 12
    for name, words in {
        "half.json": "cut short", "half.json.gz": "cut short", "half.json.zst": "damaged", "empty.json": "empty", "foreign.json": "another kind",
        "newer.json": "upgrade dsdoctor", "list.json": "list", "bytes.json": "not text", "recording.json": "dsdoctor replay", "mixed.ndjson:2": "not JSON",
        "mixed.ndjson:3": "cut short", "no.parquet": "Parquet",
    }.items():  # fmt: skip
        assert words in reasons[name], (name, reasons[name])


def test_bad_input_ends_in_zero_with_a_warning_and_strict_in_two(with_bad_input: Path) -> None:
    lenient = command(str(with_bad_input))
    assert (lenient.exit_code, "12 of the inputs could not be read" in lenient.stderr) == (0, True)
    assert "foreign.json" in lenient.stdout
    assert command(str(with_bad_input), "--strict").exit_code == 2


def test_reasons_that_differ_only_in_the_line_are_one(base: Report, tmp_path: Path) -> None:
    text = json.dumps(node(base, "good"), indent=2)
    for number in range(20):
        (tmp_path / f"bad{number}.json").write_text(text[: 1000 + 500 * number])
    (tmp_path / "good.json").write_text(text)
    (rejection,) = merged(tmp_path).rejected
    assert (rejection.count, len(rejection.sources)) == (20, 5)


def test_the_newest_report_of_a_node_counts(base: Report, tmp_path: Path) -> None:
    old = node(base, "n1", taken_at="2026-11-01T00:00:00Z", verdict="broken")
    new = node(base, "n1", taken_at="2026-11-02T00:00:00+02:00")
    silent = {"schema": "dsdoctor.no-report/1", "label": "n1", "reason": "no answer"}
    fleet = merge_of(tmp_path, [new, old, silent, node(base, "n2")])
    assert [(item.name, item.verdict) for item in fleet.nodes] == [("n1", "healthy"), ("n2", "healthy")]
    assert fleet.counts.duplicates == 2
    assert any("2 older reports that are left out, of n1" in notice for notice in fleet.notices)


def test_without_any_report_it_says_what_it_wants(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no report was found"):
        merged(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match=r"none of 1 documents is a report; .*a\.json: a JSON document without dsdoctor's schema"):
        merged(tmp_path)
    with pytest.raises(UsageError, match="there is no such file"):
        merged(tmp_path / "nowhere")
    assert command(str(tmp_path)).exit_code == 2


def test_without_duckdb_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    found = command(str(tmp_path))
    assert (found.exit_code, found.stderr) == (2, f"dsdoctor: {store.INSTALL}\n")


# --- what is odd ------------------------------------------------------------------------------------------------------


def test_the_odd_value_is_told_with_what_the_others_have(base: Report, tmp_path: Path) -> None:
    fleet = merge_of(
        tmp_path, [*(node(base, f"n{i:02d}") for i in range(1, 9)), node(base, "n09", facts__platform__value__kernel_release="5.15.0")]
    )
    found = problem(fleet, "fleet.node-differs")
    assert (found.subject, found.hosts, found.severity, found.summary) == (
        "kernel",
        "n09",
        Severity.WARNING,
        "Linux kernel: 5.15.0; most nodes: 6.18.44",
    )
    assert [item.problems[:1] for item in fleet.nodes if item.name == "n09"] == [(found.number,)]


def test_a_missing_variable_or_package_is_a_value_too(base: Report, tmp_path: Path) -> None:
    without = node(base, "n3")
    without["facts"]["packages"]["value"] = [item for item in without["facts"]["packages"]["value"] if item["name"] != "triton"]
    unread = node(base, "n4", facts__packages={"state": "unreadable", "why": "no permission"})
    fleet = merge_of(tmp_path, [node(base, "n1"), node(base, "n2"), without, unread])
    found = problem(fleet, "fleet.node-differs", "package.triton")
    assert (found.hosts, "not installed" in found.summary) == ("n3", True)


def test_without_a_majority_nobody_is_odd_but_the_difference_is_told(base: Report, tmp_path: Path) -> None:
    fleet = merge_of(tmp_path, [node(base, "a"), node(base, "b", facts__torch_build__value__version="2.10.0")])
    found = problem(fleet, "fleet.node-differs")
    assert (found.subject, found.nodes, found.expected) == ("torch", 2, "")
    (fact,) = [item for item in fleet.groups[0].facts if item.fact == "torch"]
    assert fact.value is None
    assert {(item.value, item.hosts) for item in fact.others} == {("2.11.0+cu130", "a"), ("2.10.0", "b")}


def test_what_differs_by_its_nature_is_not_told(base: Report, tmp_path: Path) -> None:
    def own(number: int) -> Report:
        report = node(base, f"n{number}")
        report["facts"]["environment"]["value"] += [
            {"name": "SLURM_PROCID", "value": str(number)},
            {"name": "SCRATCH", "value": f"/local/{number}"},
        ]
        return report

    fleet = merge_of(tmp_path, [own(number) for number in range(12)])
    assert fleet.counts.warnings == 0
    assert fleet.groups[0].varying == ("env.SCRATCH",)


def test_nodes_are_compared_with_their_like(base: Report, tmp_path: Path) -> None:
    def other(label: str) -> Report:
        report = node(base, label, facts__nvml_versions__value__driver="570.1")
        for gpu in report["facts"]["gpus"]["value"]:
            gpu["name"] = "NVIDIA H100 80GB HBM3"
        return report

    reports = [*(node(base, f"a{i}") for i in range(4)), *(other(f"b{i}") for i in range(3))]
    assert merge_of(tmp_path, reports).counts.warnings == 0
    by_prefix = merge_of(tmp_path, reports, ["label-prefix"])
    assert [(group.name, group.nodes) for group in by_prefix.groups] == [("a", 4), ("b", 3)]
    everything = merge_of(tmp_path, reports, ["os"])
    assert (
        problem(everything, "fleet.node-differs", "driver").hosts == problem(everything, "fleet.node-differs", "product").hosts == "b[0-2]"
    )
    assert {group.name for group in merge_of(tmp_path, reports, ["product", "package.torch"]).groups} == {
        "NVIDIA H200, torch 2.11.0",
        "NVIDIA H100 80GB HBM3, torch 2.11.0",
    }
    with pytest.raises(UsageError, match="did you mean kernel"):
        merge_of(tmp_path, reports, ["kernal"])


def test_nccl_must_be_the_same_on_all_ranks(base: Report, tmp_path: Path) -> None:
    fleet = merge_of(tmp_path, [node(base, "a"), node(base, "b"), node(base, "c", facts__torch_runtime__value__nccl_loaded="2.27.5")])
    found = problem(fleet, "nccl.version-differs")
    assert (found.severity, found.hosts) == (Severity.ERROR, "c")
    (work,) = [item for item in fleet.work if item.checks == ("nccl.version-differs",)]
    assert any("==2.28.9" in text for text in work.remedy.commands)


def test_one_slow_gpu_among_thousands_of_rates(base: Report, tmp_path: Path) -> None:
    def rates(number: int) -> Report:
        report = node(base, f"n{number:03d}")
        report["facts"]["smoke"] = {
            "state": "known",
            "value": [
                {
                    "test": "bf16-rate",
                    "path": "torch.mm",
                    "gpu": gpu,
                    "outcome": "ran",
                    "values": {"tflops": 700.0 if (number, gpu) == (33, 5) else 800.0 + (7 * number + gpu) % 9},
                }
                for gpu in range(8)
            ],
        }
        return report

    found = problem(merge_of(tmp_path, [rates(number) for number in range(100)]), "fleet.slow-gpu")
    assert (found.hosts, found.subject) == ("n033", "bf16-rate torch.mm")
    assert "GPU 5: 700.0 TFLOP/s, 13 % below the median" in found.summary


def test_few_rates_and_small_losses_are_not_judged(base: Report, tmp_path: Path) -> None:
    def rate(label: str, tflops: float) -> Report:
        smoke = {
            "state": "known",
            "value": [{"test": "bf16-rate", "path": "torch.mm", "gpu": 0, "outcome": "ran", "values": {"tflops": tflops}}],
        }
        return node(base, label, facts__smoke=smoke)

    assert merge_of(tmp_path, [rate("a", 800.0), rate("b", 800.0), rate("c", 100.0)]).counts.warnings == 0
    assert merge_of(tmp_path, [*(rate(f"a{i}", 800.0) for i in range(20)), rate("b", 780.0)]).counts.warnings == 0


def test_the_driver_of_a_domain_is_judged_within_it(base: Report, tmp_path: Path) -> None:
    def member(label: str, domain: str, driver: str) -> Report:
        report = node(base, label, facts__nvml_versions__value__driver=driver)
        for gpu in report["facts"]["gpus"]["value"]:
            gpu["fabric"] = {"state": "completed", "cluster_uuid": domain, "clique_id": 1}
        return report

    rack1 = [member(f"a{i}", "fabric-000000000001", "580.1") for i in range(4)]
    rack2 = [member(f"b{i}", "fabric-000000000002", "580.2" if i else "580.1") for i in range(4)]
    found = problem(merge_of(tmp_path, [*rack1, *rack2]), "fleet.domain-differs")
    assert (found.hosts, found.severity, found.expected) == ("b0", Severity.ERROR, "580.2")
    unknown = [member(f"c{i}", "00000001-0000-0000-0000-000000000000", f"580.{i % 2}") for i in range(4)]
    assert not [item for item in merge_of(tmp_path, unknown).problems if item.check == "fleet.domain-differs"]


def test_a_clock_that_is_off_is_told_when_a_collector_saw_it(base: Report, tmp_path: Path) -> None:
    def seen(label: str, taken: str) -> Report:
        return node(base, label, taken_at=taken, received_at="2026-11-29T10:00:02Z")

    usual = [seen(f"n{i}", "2026-11-29T10:00:01Z") for i in range(5)]
    found = problem(merge_of(tmp_path, [*usual, seen("late", "2026-11-29T09:58:01Z")]), "fleet.clock-skew")
    assert (found.hosts, found.summary) == ("late", "the clock is 120 s behind the others")
    plain = [node(base, f"n{i}", taken_at=f"2026-11-29T1{i}:00:00Z") for i in range(5)]
    assert not [item for item in merge_of(tmp_path, plain).problems if item.check == "fleet.clock-skew"]


def test_a_node_that_never_answered_is_a_row_with_its_reason(base: Report, tmp_path: Path) -> None:
    fleet = merge_of(tmp_path, [node(base, "a"), {"schema": "dsdoctor.no-report/1", "label": "b", "reason": "ssh: no route to host"}])
    assert problem(fleet, "fleet.no-report").summary == "no report: ssh: no route to host"
    assert [(item.name, item.verdict) for item in fleet.nodes] == [("a", "healthy"), ("b", "no-report")]
    assert fleet.verdict == "broken"


def test_findings_and_remedies_are_gathered_over_nodes(tmp_path: Path) -> None:
    for number, name in enumerate(("driver-too-old", "driver-too-old", "driver-too-old", "h200-healthy")):
        report = diagnose(replay.load(f"example:{name}"), KNOWLEDGE, CHECKS, today=TODAY)
        (tmp_path / f"node{number}.json").write_text(json_render.render(report))
    fleet = merged(tmp_path)
    found = problem(fleet, "driver.too-old-for-cuda")
    assert (found.hosts, found.origin, found.severity) == ("node[0-2]", "node", Severity.ERROR)
    assert [item.hosts for item in fleet.work if "driver.too-old-for-cuda" in item.checks] == ["node[0-2]"]
    ranks = [
        ["none", "restart_process", "reset_gpu", "reboot", "replace_hardware"].index(item.remedy.disruption.value) for item in fleet.work
    ]
    assert ranks == sorted(ranks)


# --- what it looks like -----------------------------------------------------------------------------------------------

EVIL = "=cmd|'/C calc'!A0\x1b[2J</style><script>alert(1)</script>$(reboot)"


@pytest.fixture
def evil_fleet(base: Report, tmp_path: Path) -> Fleet:
    evil = node(base, EVIL, facts__platform__value__kernel_release=f"6.1 {EVIL}")
    return merge_of(
        tmp_path, [node(base, "a"), node(base, "b"), evil, {"schema": "dsdoctor.no-report/1", "label": f"@{EVIL}", "reason": EVIL}]
    )


def test_names_and_texts_of_reports_are_data(evil_fleet: Fleet) -> None:
    screen = page.render(evil_fleet, width=80)
    assert "\x1b" not in screen
    html = fleet_html.render(evil_fleet)
    assert "<script" not in html
    assert html.count("</style>") == 1
    assert "\x1b" not in html
    rows = list(csv.reader(io.StringIO(page.nodes_csv(evil_fleet))))
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@"))]
    assert json.loads(page.render_json(evil_fleet))["nodes"][0]["name"] in (EVIL, f"@{EVIL}", "a")


def test_the_page_is_one_file_without_script(planted_answer: Fleet) -> None:
    html = fleet_html.render(planted_answer)
    assert not [
        word
        for word in ("<script", "http://", "https://", "src=", "@import", "<link")
        if word in html.replace("https://docs.nvidia.com", "")
    ]
    assert "prefers-color-scheme: dark" in html
    assert html.count("<article>") == html.count("</article>") > 12


def test_several_forms_in_one_run(planted_fleet: Any, tmp_path: Path) -> None:
    outputs = [str(tmp_path / name) for name in ("f.json", "f.html", "nodes.csv", "findings.csv", "f.txt", "f.parquet")]
    found = command(str(planted_fleet[0] / "reports"), *(part for name in outputs for part in ("-o", name)))
    assert found.exit_code == 1
    nodes = list(csv.DictReader((tmp_path / "nodes.csv").open(newline="")))
    assert (len(nodes), set(nodes[0])) == (300, set(page.NODE_COLUMNS))
    findings = list(csv.DictReader((tmp_path / "findings.csv").open(newline="")))
    assert {row["check"] for row in findings if row["origin"] == "fleet"} >= {"fleet.slow-gpu", "fleet.no-report", "nccl.version-differs"}
    assert json.loads((tmp_path / "f.json").read_text())["counts"]["nodes"] == 300
    assert (tmp_path / "f.txt").read_text().startswith("dsdoctor 0.1.0: 300 nodes")
    assert command(str(tmp_path / "f.parquet"), "-o", "x.docx").exit_code == 2


def test_exit_codes_follow_fail_on(base: Report, tmp_path: Path) -> None:
    path = tmp_path / "fleet.ndjson"
    path.write_text(lines([node(base, "a"), node(base, "b"), node(base, "c", facts__platform__value__kernel_release="5.15.0")]))
    assert [command(str(path), "--fail-on", name).exit_code for name in ("error", "warning", "info", "never")] == [0, 1, 1, 0]


def test_facts_in_which_the_same_nodes_differ_stand_together(base: Report, tmp_path: Path) -> None:
    other = node(base, "c", facts__platform__value__kernel_release="5.15.0", facts__libc__value__version="2.35")
    screen = page.render(merge_of(tmp_path, [node(base, "a"), node(base, "b"), other]), width=80)
    assert screen.count("fleet.node-differs: 1 node") == 1
    assert "Linux kernel: 5.15.0" in screen
    assert "C library: glibc 2.35" in screen


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([f"node{number:03d}" for number in range(1, 257)], "node[001-256]"),
        (["n9", "n10", "n11", "x"], "n[9-11],x"),
        (["n01", "n12", "n100"], "n[01,12],n100"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["r1-n2.x", "r1-n3.x", "r2-n1.x"], "r1-n[2-3].x,r2-n1.x"),
        (["a b", "q[1]", "c1"], "a b,c1,q[1]"),
        (["n1", "n01"], "n01,n1"),
        ([], ""),
    ],
)
def test_names_are_folded_as_slurm_writes_them(names: list[str], expected: str) -> None:
    assert folded(reversed(names)) == expected


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture
def chromium() -> str:
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium here")
    return found


def test_a_browser_shows_the_page(chromium: str, planted_answer: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "fleet.html"
    path.write_text(fleet_html.render(planted_answer), encoding="utf-8")
    base = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run([*base, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Nodes to look at" in done.stdout
    assert done.stdout.count("<article>") == fleet_html.render(planted_answer).count("<article>")


# --- golden reports ---------------------------------------------------------------------------------------------------

GOLDEN = sorted((ROOT / "tests/golden/reports").glob("*/*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_reports_of_every_released_version_stay_readable(path: Path) -> None:
    document = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads(files("dsdoctor").joinpath("report.schema.json").read_text())).validate(document)
    assert document["dsdoctor"] == path.parent.name
    assert replay.load(str(path)).sections.gpus.value


def test_golden_reports_merge(tmp_path: Path) -> None:
    assert {path.parent.name for path in GOLDEN} >= {"0.1.0"}
    fleet = merged(ROOT / "tests/golden/reports")
    assert (fleet.counts.nodes, fleet.counts.rejected) == (len(GOLDEN), 0)
