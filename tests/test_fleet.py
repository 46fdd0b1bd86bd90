"""Many reports, one answer: what is odd is found, what is no report is named, and nothing of a report is trusted."""

from __future__ import annotations

import codecs
import copy
import csv
import datetime
import errno
import gzip
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from dsdoctor import __version__, cli
from dsdoctor.checks import CHECKS
from dsdoctor.cli.fleet import exit_code
from dsdoctor.cli.options import FailOn
from dsdoctor.diagnose import diagnose
from dsdoctor.errors import InputError, UsageError
from dsdoctor.findings import Severity
from dsdoctor.fleet import compare, documents, store
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
    del document["facts"]["packages"]["value"][40:]
    document["facts"]["packages"]["value"] += [{"name": "torch", "version": "2.11.0"}, {"name": "triton", "version": "3.6.0"}]
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
    fleet = merge_of(tmp_path, [node(base, f"n{i}") for i in range(5)])
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
    (inner / "h.ndjson").write_text(lines([node(base, f"h{number}") for number in range(14)]))
    assert (inner / "h.ndjson").stat().st_size > documents.WHOLE_LIMIT_BYTES
    (inner / "notes.txt").write_text("not looked at")
    fleet = merged(tmp_path)
    assert folded(item.name for item in fleet.nodes) == "a,b,c,d[1-2],e[1-2],f[1-2],g[1-2],h[0-13]"
    assert fleet.counts.rejected == 0


def test_standard_input_is_read(base: Report) -> None:
    found = command("-", "--format", "json", stdin=lines([node(base, "a"), node(base, "b")]))
    assert [item["name"] for item in json.loads(found.stdout)["nodes"]] == ["a", "b"]


def test_a_node_is_called_by_its_label_else_by_its_file(base: Report, tmp_path: Path) -> None:
    (tmp_path / "node7.json").write_text(json.dumps(node(base, "this machine")))
    (tmp_path / "node8.json").write_text(json.dumps(base))
    (tmp_path / "x.json").write_text(json.dumps(node(base, "rack 3, node 9")))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(base))
    assert [item.name for item in merged(tmp_path).nodes] == ["a/report", "b/report", "node7", "node8", "rack 3, node 9"]


def test_reports_of_other_versions_are_read_as_far_as_they_go(base: Report, tmp_path: Path) -> None:
    newer = node(base, "new", dsdoctor="9.9.9", something_new={"a": 1}, facts__gravity={"state": "known", "value": 9.81})
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
    assert fleet.versions == {"0.0.1": 1, __version__: 1, "9.9.9": 1}
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


def test_it_makes_no_difference_how_much_is_read_at_once(with_bad_input: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = merged(with_bad_input)
    monkeypatch.setattr("dsdoctor.fleet.loading.ROUND_BYTES", 1)
    assert merged(with_bad_input) == at_once


def test_line_ends_marks_and_names_that_are_no_text_harm_nothing(base: Report, tmp_path: Path) -> None:
    def written(name: bytes, label: str, change: Callable[[bytes], bytes]) -> None:
        (tmp_path / os.fsdecode(name)).write_bytes(change(json.dumps(node(base, label), indent=1).encode()))

    written(b"a.json", "lines", lambda text: text.replace(b"\n", b"\r\n"))
    written(b"b.json", "mark", lambda text: codecs.BOM_UTF8 + text)
    written(b"c\xff.json", "name", lambda text: text)
    written(b"d\xff.json", "cut", lambda text: text[:2000].replace(b"\n", b"\r\n"))
    last = (tmp_path / os.fsdecode(b"d\xff.json")).read_bytes().count(b"\n") + 1
    fleet = merged(tmp_path)
    assert [item.name for item in fleet.nodes] == ["lines", "mark", "name"]
    assert [item.reason for item in fleet.rejected] == [
        f"the JSON ends in the middle (line {last}); the file was cut short, record it again"
    ]


def test_a_full_disk_is_told_with_the_way_out(base: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, document: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dsdoctor.fleet.loading.Round.put", full)
    with pytest.raises(UsageError, match=r"No space left on device; set TMPDIR to a folder with room for 384 MiB"):
        merge_of(tmp_path, [node(base, "node1")])


def test_reasons_that_differ_only_in_the_line_are_one() -> None:
    rejected = [documents.Rejected(f"bad{number}.json", f"the JSON ends in the middle (line {number})") for number in range(20)]
    (rejection,) = compare.rejections(rejected)
    assert (rejection.reason, rejection.count, len(rejection.sources)) == ("the JSON ends in the middle (…)", 20, 5)


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


def rates(report: Report, slow: Mapping[int, float]) -> Report:
    """The report with a rate of each of eight GPUs, and what the slow ones reach."""
    report["facts"]["smoke"] = {
        "state": "known",
        "value": [
            {"test": "bf16-rate", "path": "torch.mm", "gpu": gpu, "outcome": "ran", "values": {"tflops": slow.get(gpu, 800.0 + gpu % 3)}} for gpu in range(8)
        ],
    }  # fmt: skip
    return report


def member(report: Report, domain: str, driver: str) -> Report:
    """The report of a node of an NVLink domain."""
    report["facts"]["nvml_versions"]["value"]["driver"] = driver
    for gpu in report["facts"]["gpus"]["value"]:
        gpu["fabric"] = {"state": "completed", "cluster_uuid": domain, "clique_id": 1}
    return report


def with_variables(report: Report, **variables: str) -> Report:
    report["facts"]["environment"]["value"] += [{"name": name, "value": value} for name, value in variables.items()]
    return report


def seen(report: Report, taken_at: str) -> Report:
    """The report as a collector handed it on."""
    report["taken_at"], report["received_at"] = taken_at, "2026-11-29T10:00:02Z"
    return report


@pytest.fixture(scope="module")
def odd_fleet(base: Report, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Twelve nodes, of which each odd one has its own oddity; two more of a rack whose old pseudonym says nothing."""
    without = node(base, "n04")
    without["facts"]["packages"]["value"] = [item for item in without["facts"]["packages"]["value"] if item["name"] != "triton"]
    reports = [
        *(node(base, f"n{i:02d}") for i in range(5, 12)),
        node(base, "n01", facts__platform__value__kernel_release="5.15.0"),
        node(base, "n02", facts__torch_runtime__value__nccl_loaded="2.27.5"),
        node(base, "n03", facts__libc__value__version="2.35", facts__torch_build__value__version="2.10.0"),
        without,
        node(base, "n12", facts__packages={"state": "unreadable", "why": "no permission"}),
        {"schema": "dsdoctor.no-report/1", "label": "n13", "reason": "ssh: no route to host"},
    ]
    reports = [
        rates(report, {5: 700.0, 6: 780.0} if report["origin"]["label"] == "n06" else {}) if "facts" in report else report
        for report in reports
    ]
    reports = [
        seen(item, "2026-11-29T09:58:01Z" if item["origin"]["label"] == "n07" else "2026-11-29T10:00:01Z") if "facts" in item else item
        for item in reports
    ]
    reports += [member(node(base, f"r1-{i}"), "fabric-000000000001", "580.159.04") for i in range(3)]
    reports += [member(node(base, f"r2-{i}"), "fabric-000000000002", "580.95.05" if i else "580.159.04") for i in range(3)]
    reports += [member(node(base, f"old-{i}"), "00000001-0000-0000-0000-000000000000", f"570.{i}") for i in range(2)]
    for number, report in enumerate(reports):
        if "facts" in report:
            with_variables(report, SLURM_PROCID=str(number), SCRATCH=f"/local/{number}")
    return merge_of(tmp_path_factory.mktemp("odd"), reports)


def test_the_odd_value_is_told_with_what_the_others_have(odd_fleet: Fleet) -> None:
    found = problem(odd_fleet, "fleet.node-differs", "kernel")
    assert (found.hosts, found.severity, found.summary) == ("n01", Severity.WARNING, "Linux kernel: 5.15.0; most nodes: 6.18.44")
    assert [item.problems[:1] for item in odd_fleet.nodes if item.name == "n01"] == [(found.number,)]


def test_a_missing_package_is_a_value_too_where_packages_are_known(odd_fleet: Fleet) -> None:
    found = problem(odd_fleet, "fleet.node-differs", "package.triton")
    assert (found.hosts, "not installed" in found.summary) == ("n04", True)


def test_what_differs_by_its_nature_is_not_told(odd_fleet: Fleet) -> None:
    facts = {item.fact for item in odd_fleet.groups[0].facts}
    assert odd_fleet.groups[0].varying == ("env.SCRATCH",)
    assert not {"env.SCRATCH", "env.SLURM_PROCID"} & facts
    assert "env.CUDA_HOME" in facts


def test_nccl_must_be_the_same_on_all_ranks(odd_fleet: Fleet) -> None:
    found = problem(odd_fleet, "nccl.version-differs")
    assert (found.severity, found.hosts) == (Severity.ERROR, "n02")
    (work,) = [item for item in odd_fleet.work if item.checks == ("nccl.version-differs",)]
    assert any("==2.28.9" in text for text in work.remedy.commands)


def test_one_slow_gpu_is_told_and_a_small_loss_is_not(odd_fleet: Fleet) -> None:
    found = problem(odd_fleet, "fleet.slow-gpu")
    assert (found.hosts, found.subject, found.nodes) == ("n06", "bf16-rate torch.mm", 1)
    assert [item.text for item in found.details] == ["GPU 5: 700.0 TFLOP/s, 13 % below the median, z = -25.2"]


def test_the_driver_of_a_domain_is_judged_within_it(odd_fleet: Fleet) -> None:
    found = problem(odd_fleet, "fleet.domain-differs")
    assert (found.hosts, found.severity, found.expected) == ("r2-0", Severity.ERROR, "580.95.05")


def test_a_clock_that_is_off_is_told_when_a_collector_saw_it(odd_fleet: Fleet) -> None:
    found = problem(odd_fleet, "fleet.clock-skew")
    assert (found.hosts, found.summary) == ("n07", "the clock is 120 s behind the others")


def test_a_node_that_never_answered_is_a_row_with_its_reason(odd_fleet: Fleet) -> None:
    assert problem(odd_fleet, "fleet.no-report").summary == "no report: ssh: no route to host"
    assert [(item.name, item.verdict) for item in odd_fleet.nodes if item.reason] == [("n13", "no-report")]
    assert odd_fleet.verdict == "broken"


def test_facts_in_which_the_same_nodes_differ_stand_together(odd_fleet: Fleet) -> None:
    screen = page.render(odd_fleet, width=80)
    (block,) = [text for text in screen.split("\n\n") if "glibc 2.35" in text and "node-differs" in text]
    assert "torch: 2.10.0" in block
    assert block.count("n03") == 1


def test_without_a_majority_nobody_is_odd_and_few_rates_are_not_judged(base: Report, tmp_path: Path) -> None:
    reports = [rates(node(base, "a"), {}), rates(node(base, "b", facts__torch_build__value__version="2.10.0"), {})]
    for report in reports:
        del report["facts"]["smoke"]["value"][3:]
    reports[0]["facts"]["smoke"]["value"][0]["values"]["tflops"] = 100.0
    fleet = merge_of(tmp_path, reports)
    (found,) = [item for item in fleet.problems if item.origin == "fleet"]
    assert (found.check, found.subject, found.nodes, found.expected) == ("fleet.node-differs", "torch", 2, "")
    (fact,) = [item for item in fleet.groups[0].facts if item.fact == "torch"]
    assert fact.value is None
    assert {(item.value, item.hosts) for item in fact.others} == {("2.11.0+cu130", "a"), ("2.10.0", "b")}


def test_nodes_are_compared_with_their_like(base: Report, tmp_path: Path) -> None:
    def other(label: str) -> Report:
        report = node(base, label, facts__nvml_versions__value__driver="570.1")
        for gpu in report["facts"]["gpus"]["value"]:
            gpu["name"] = "NVIDIA H100 80GB HBM3"
        return report

    reports = [*(node(base, f"a{i}") for i in range(4)), *(other(f"b{i}") for i in range(3))]
    assert merge_of(tmp_path, reports, ["product", "label-prefix"]).counts.warnings == 0
    everything = merge_of(tmp_path, reports, ["package.torch"])
    assert [(group.name, group.nodes) for group in everything.groups] == [("torch 2.11.0", 7)]
    assert (
        problem(everything, "fleet.node-differs", "driver").hosts == problem(everything, "fleet.node-differs", "product").hosts == "b[0-2]"
    )
    with pytest.raises(UsageError, match="did you mean kernel"):
        merge_of(tmp_path, reports, ["kernal"])


def test_findings_and_remedies_are_gathered_over_nodes(tmp_path: Path) -> None:
    for number, name in enumerate(("driver-too-old", "h200-healthy")):
        report = json_render.render(diagnose(replay.load(f"example:{name}"), KNOWLEDGE, CHECKS, today=TODAY))
        for copy_number in range(3 if number == 0 else 1):
            (tmp_path / f"node{number}{copy_number}.json").write_text(report)
    fleet = merged(tmp_path)
    found = problem(fleet, "driver.too-old-for-cuda")
    assert (found.hosts, found.origin, found.severity) == ("node[00-02]", "node", Severity.ERROR)
    assert [item.hosts for item in fleet.work if "driver.too-old-for-cuda" in item.checks] == ["node[00-02]"]
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


def test_several_forms_in_one_run(base: Report, tmp_path: Path) -> None:
    reports = [*(node(base, f"n{i}") for i in range(4)), node(base, "n4", facts__torch_runtime__value__nccl_loaded="2.27.5")]
    (tmp_path / "all.ndjson").write_text(lines(reports))
    (tmp_path / "later.ndjson").write_text(lines([node(base, "n5")]))
    outputs = [str(tmp_path / name) for name in ("f.json", "f.html", "nodes.csv", "findings.csv", "f.txt", "f.parquet")]
    found = command(str(tmp_path / "all.ndjson"), *(part for name in outputs for part in ("-o", name)))
    assert found.exit_code == 1
    nodes = list(csv.DictReader((tmp_path / "nodes.csv").open(newline="")))
    assert (len(nodes), set(nodes[0])) == (5, set(page.NODE_COLUMNS))
    findings = list(csv.DictReader((tmp_path / "findings.csv").open(newline="")))
    assert {row["check"] for row in findings if row["origin"] == "fleet"} == {"nccl.version-differs"}
    assert json.loads((tmp_path / "f.json").read_text())["counts"]["nodes"] == 5
    assert (tmp_path / "f.txt").read_text().startswith(f"dsdoctor {__version__}: 5 nodes")
    again = merged(tmp_path / "f.parquet", tmp_path / "later.ndjson")
    assert (again.counts.nodes, problem(again, "nccl.version-differs").hosts) == (6, "n4")
    assert command(str(tmp_path / "f.parquet"), "-o", "x.docx").exit_code == 2


def test_exit_codes_follow_fail_on(odd_fleet: Fleet) -> None:
    mild = replace(odd_fleet, problems=tuple(item for item in odd_fleet.problems if item.severity is not Severity.ERROR))
    assert [exit_code(mild, item, strict=False) for item in FailOn] == [0, 1, 1, 0]
    assert [exit_code(odd_fleet, item, strict=True) for item in FailOn] == [1, 1, 1, 0]


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
