"""Two nodes, or one node then and now: what is different, and nothing else."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.checks._check import check
from dsdoctor.diagnose import diagnose
from dsdoctor.diff import Difference, diff, render_diff, render_json
from dsdoctor.facts import (
    CudaLibrary,
    EccCounters,
    EnvironmentVariable,
    Gpu,
    KernelDriver,
    Origin,
    Package,
    PcieLink,
    Platform,
    Sections,
    Snapshot,
    TorchRuntime,
    absent,
    known,
    unreadable,
)
from dsdoctor.findings import Evidence, Finding, KnowledgeStamp, Report, Severity


def node(label: str = "node", **sections: Any) -> Snapshot:
    return Snapshot(
        schema="dsdoctor.snapshot/1",
        taken_at="2026-11-29T00:00:00Z",
        origin=Origin(kind="replay", label=label),
        sections=Sections(**sections),
    )


def differences(left: Snapshot, right: Snapshot) -> dict[str, tuple[str, str]]:
    return {f"{item.section}{item.path}": (item.left, item.right) for item in diff(left, right).facts}


def packages(**versions: str) -> Any:
    return known(tuple(Package(name=name, version=version) for name, version in versions.items()))


def test_the_same_node_does_not_differ_from_itself() -> None:
    same = node(packages=packages(torch="2.11.0"), gpus=known((Gpu(index=0, name="NVIDIA H200"),)), platform=absent("no /proc"))
    assert diff(same, same) == Difference(left="node (2026-11-29 00:00:00 UTC)", right="node (2026-11-29 00:00:00 UTC)")


def test_packages_are_compared_by_name_and_not_by_position() -> None:
    left, right = packages(torch="2.11.0", triton="3.6.0", vllm="0.15.0"), packages(aiohttp="3.9", torch="2.11.0", triton="3.5.0")
    assert differences(node(packages=left), node(packages=right)) == {
        "packages[triton].version": ("3.6.0", "3.5.0"),
        "packages[vllm]": ("0.15.0", "not there"),
        "packages[aiohttp]": ("not there", "3.9"),
    }


def test_a_package_installed_twice_is_two_items() -> None:
    twice = known((Package(name="torch", version="2.10.0", location="/a"), Package(name="torch", version="2.11.0", location="/b")))
    assert differences(node(packages=packages(torch="2.10.0")), node(packages=twice)) == {
        "packages[torch].location": ("not set", "/a"),
        "packages[torch #2]": ("not there", "2.11.0"),
    }


def test_gpus_variables_and_libraries_go_by_what_identifies_them() -> None:
    def with_(ecc: int, debug: str, path: str) -> Snapshot:
        return node(
            gpus=known((Gpu(index=1), Gpu(index=0, ecc=EccCounters(volatile_uncorrected=ecc)))),
            environment=known((EnvironmentVariable(name="NCCL_DEBUG", value=debug),)),
            cuda_libraries=known((CudaLibrary(family="nccl", soname="libnccl.so.2", path=path, version="2.28.3", origin="wheel"),)),
        )

    assert differences(with_(0, "INFO", "/a/libnccl.so.2"), with_(3, "WARN", "/b/libnccl.so.2")) == {
        "gpus[0].ecc.volatile_uncorrected": ("0", "3"),
        "environment[NCCL_DEBUG].value": ("INFO", "WARN"),
        "cuda_libraries[nccl /a/libnccl.so.2]": ("2.28.3", "not there"),
        "cuda_libraries[nccl /b/libnccl.so.2]": ("not there", "2.28.3"),
    }


def test_what_changes_all_the_time_is_kept_apart() -> None:
    def with_(**values: Any) -> Snapshot:
        return node(gpus=known((Gpu(index=0, **values),)))

    found = diff(
        with_(temperature_c=40, power_w=90.5, pcie=PcieLink(generation=1, max_generation=5)),
        with_(temperature_c=41, power_w=300.0, pcie=PcieLink(generation=5, max_generation=4)),
    )
    assert [item.path for item in found.facts] == ["[0].pcie.max_generation"]
    assert {item.path for item in found.volatile} == {"[0].temperature_c", "[0].power_w", "[0].pcie.generation"}


def test_a_file_name_that_looks_like_a_volatile_field_is_not_one() -> None:
    def with_(version: str) -> Snapshot:
        return node(cuda_libraries=known((CudaLibrary(family="nccl", soname="x", path="/a/b.where.so", version=version, origin="wheel"),)))

    assert diff(with_("1"), with_("2")).facts[0].path == "[nccl /a/b.where.so].version"


def test_a_section_in_another_state_is_one_difference() -> None:
    found = differences(node(gpus=known((Gpu(index=0), Gpu(index=1)))), node(gpus=unreadable("NVML: driver/library version mismatch")))
    assert found == {"gpus": ("known: 2 items", "unreadable: NVML: driver/library version mismatch")}


def test_what_one_side_did_not_look_for_is_no_difference() -> None:
    found = diff(node(torch_runtime=known(TorchRuntime(imported=True))), node())
    assert found.facts == ()
    assert found.not_compared == ("torch_runtime",)
    assert "Looked for on one side only, so not compared: torch_runtime." in render_diff(found, width=80)


def test_lists_of_words_show_what_is_more_and_then_the_order() -> None:
    def with_(*arches: str) -> Snapshot:
        return node(torch_runtime=known(TorchRuntime(imported=True, arch_list=arches)))

    assert differences(with_("sm_80", "sm_90"), with_("sm_90", "sm_100")) == {"torch_runtime.arch_list": ("sm_80", "sm_100")}
    assert differences(with_("a", "b"), with_("b", "a")) == {"torch_runtime.arch_list": ("order: a, b", "order: b, a")}


class NoKnowledge:
    def matrix(self, name: str) -> Any:
        return None

    def remedies(self, check_id: str, sections: Sections) -> Any:
        return None

    def fleet_words(self, check_id: str, case: str, severity: Severity) -> None:
        return None

    def stamp(self, today: datetime.date) -> KnowledgeStamp:
        return KnowledgeStamp(digest="0", date="2026-11-29")


@check("driver.old", Severity.ERROR, explains=("smoke.*",))
def old_driver(kernel_driver: KernelDriver) -> Iterator[Finding]:
    if kernel_driver.version.startswith("535"):
        yield Finding(subject="the driver", summary=f"{kernel_driver.version} is old", evidence=(Evidence(where="x", value="y"),))


@check("smoke.gemm", Severity.ERROR)
def smoke(kernel_driver: KernelDriver) -> Iterator[Finding]:
    if kernel_driver.version.startswith("535"):
        yield Finding(subject="GPU 0", summary="fails", evidence=())


def judged(version: str) -> Report:
    sections = {"kernel_driver": known(KernelDriver(version=version)), "platform": known(Platform(os_id="ubuntu"))}
    return diagnose(node(version, **sections), NoKnowledge(), [old_driver, smoke], today=datetime.date(2026, 11, 29))


def test_findings_differ_with_their_consequences() -> None:
    found = diff(judged("535.129.03"), judged("580.65.06"))
    assert [item.check for item in found.findings_only_left] == ["driver.old", "smoke.gemm"]
    assert found.findings_only_right == ()
    assert found.findings_differ


def test_the_same_finding_in_other_words_is_the_same() -> None:
    assert not diff(judged("535.129.03"), judged("535.161.07")).findings_differ


def test_the_screen_shows_findings_first_and_counts_last() -> None:
    text = render_diff(diff(judged("535.129.03"), judged("580.65.06")), width=80)
    assert text.index("Found only on the left") < text.index("kernel driver")
    assert "  version\n    left:  535.129.03\n    right: 580.65.06" in text
    assert text.endswith("1 fact and 2 findings differ.")
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())


def test_the_same_difference_on_eight_gpus_is_told_once() -> None:
    def with_(vbios: str) -> Snapshot:
        return node(gpus=known(tuple(Gpu(index=index, vbios_version=vbios) for index in range(8))))

    text = render_diff(diff(with_("96.00.A5"), with_("96.00.B1")), width=80)
    assert text.count("96.00.B1") == 1
    assert "[0, 1, 2, 3, 4, 5, 6, 7].vbios_version" in text
    assert "8 facts and 0 findings differ." in text


def test_json_form() -> None:
    document = json.loads(render_json(diff(judged("535.129.03"), judged("580.65.06"))))
    assert document["schema"] == "dsdoctor.diff/1"
    assert document["facts"] == [{"section": "kernel_driver", "path": ".version", "left": "535.129.03", "right": "580.65.06"}]
    assert document["findings_only_left"][0]["severity"] == "error"
    assert document["volatile"] == []


def test_no_difference_is_said() -> None:
    assert render_diff(diff(node(), node()), width=80).endswith("No difference in what was compared.")


names = st.sampled_from(["torch", "vllm", "triton", "numpy"])
some_packages = st.dictionaries(names, st.sampled_from(["1", "2"]))


@given(some_packages, some_packages)
@settings(max_examples=100, deadline=None)
def test_both_directions_agree_and_only_equal_nodes_are_equal(ours: dict[str, str], theirs: dict[str, str]) -> None:
    left, right = (node(packages=packages(**side)) for side in (ours, theirs))
    there, back = diff(left, right), diff(right, left)
    assert {(item.path, item.left, item.right) for item in there.facts} == {(item.path, item.right, item.left) for item in back.facts}
    assert (there.facts == ()) == (ours == theirs)


@pytest.mark.parametrize("evil", ["\x1b[2Jx", "a\rb"])
def test_values_cannot_steer_the_terminal(evil: str) -> None:
    left, right = (node(environment=known((EnvironmentVariable(name="X", value=value),))) for value in (evil, "b"))
    assert "\x1b" not in render_diff(diff(left, right), width=80)
