"""The matrices: every row well formed, sourced and consistent with the others; broken overlays refused with file and line."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.errors import MatrixError
from dsdoctor.lint import agreement, dataclasses_in, lint
from dsdoctor.matrix import INDEX, Knowledge, compile_directory, lint_overlay, load_table, matrix_names, stem_of, stems_under
from dsdoctor.plain import to_plain
from dsdoctor.rows import Basis, Confidence
from dsdoctor.versions import ComputeCapability, CudaVersion, DriverVersion, LibraryVersion

MATRICES = Path(__file__).resolve().parents[1] / "matrices"
TODAY = datetime.date(2026, 12, 1)
DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
KNOWLEDGE = Knowledge()


@pytest.fixture(params=matrix_names())
def matrix(request: pytest.FixtureRequest) -> Any:
    return KNOWLEDGE.matrix(request.param)


# --- every row --------------------------------------------------------------------------------------------------------


def test_the_name_is_the_stem_and_parameters_find_it(matrix: Any) -> None:
    assert KNOWLEDGE.matrix(f"{matrix.matrix.replace('-', '_')}_matrix") is matrix
    assert stem_of(f"{matrix.matrix.replace('-', '_')}_matrix") == matrix.matrix


def test_every_table_has_rows_and_sources(matrix: Any) -> None:
    assert any(isinstance(row, Basis) for _, row in dataclasses_in(matrix, matrix.matrix))


def test_the_lint_finds_nothing_in_any_file() -> None:
    """Shape, sources, dates, versions, patterns, names and twins: the rules of `dsdoctor matrix lint`."""
    assert [str(problem) for problem in lint(MATRICES)] == []


def test_weak_rows_carry_no_error(matrix: Any) -> None:
    for path, basis in dataclasses_in(matrix, matrix.matrix):
        if isinstance(basis, Basis):
            assert basis.at_most in ("", "info", "warning"), path
            if (
                basis.weak
                or basis.at_most
                or (basis.confidence is Confidence.COMMUNITY and not (basis.audited or basis.reread or basis.certainty))
            ):
                assert not basis.may_carry_error, path


def test_matrices_say_the_same() -> None:
    assert agreement(KNOWLEDGE) == ()


def test_no_index_host_is_named() -> None:
    for stem in stems_under(MATRICES):
        content = (MATRICES / f"{stem}.yaml").read_text(encoding="utf-8")
        assert "/simple/" not in content, stem


# --- agreement between matrices ---------------------------------------------------------------------------------------


def test_a_branch_reports_the_cuda_of_the_toolkits_that_name_it() -> None:
    toolkits, branches = KNOWLEDGE.matrix("cuda-toolkits"), KNOWLEDGE.matrix("driver-branches")
    for release in toolkits.releases:
        driver = DriverVersion.parse(release.toolkit_driver)
        if driver is not None and release.kind != "developer preview":
            assert branches.native_cuda(driver) == release.cuda, release.version


def test_every_major_has_a_floor_below_its_toolkit_drivers() -> None:
    toolkits = KNOWLEDGE.matrix("cuda-toolkits")
    for release in toolkits.releases:
        floor = toolkits.floor(release.cuda)
        assert floor is not None, release.version
        driver, lowest = DriverVersion.parse(release.toolkit_driver), DriverVersion.parse(floor.min_driver)
        assert driver is None or lowest is None or driver >= lowest or release.version.startswith("11.0."), release.version


def test_newest_branch_serves_the_newest_toolkit() -> None:
    branches = KNOWLEDGE.matrix("driver-branches")
    assert branches.native_cuda(DriverVersion((branches.newest,))) == KNOWLEDGE.matrix("cuda-toolkits").newest


def test_first_listed_drivers_lie_in_their_branch_and_are_no_betas() -> None:
    branches = KNOWLEDGE.matrix("driver-branches")
    for product in KNOWLEDGE.matrix("gpus").products:
        for branch, text in product.first_listed.items():
            driver = DriverVersion.parse(text)
            assert driver is not None
            assert driver.branch == int(branch), product.product
            assert not branches.is_developer_beta(driver), f"{product.product} {text}"
        assert not product.min_driver or product.basis.weak or product.basis.confidence is Confidence.DOCUMENTED, product.product


def test_gpu_limits_and_products_agree() -> None:
    gpus = KNOWLEDGE.matrix("gpus")
    limits = KNOWLEDGE.matrix("gpu-limits")
    for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H200", "NVIDIA H20", "NVIDIA H20-3e", "NVIDIA L40S",
                 "NVIDIA B200", "NVIDIA GB200", "NVIDIA B300 SXM6 AC", "NVIDIA GB300", "NVIDIA H800", "NVIDIA A800-SXM4-80GB", "NVIDIA H200 NVL"):  # fmt: skip
        product, limit = gpus.product(name), limits.product(name)
        assert product is not None, name
        assert limit is not None, name
        assert product.compute_capability == limit.compute_capability, name
        assert (limit.fp8_tflops is not None) == gpus.has("fp8-mma", product.capability), name
    known = {row.id for row in limits.products}
    assert {row.product for row in limits.achieved} <= known
    for row in limits.products:
        if row.nvlink_links:
            assert row.nvlink_links * row.nvlink_gb_per_s_per_link == row.nvlink_gb_per_s, row.id
    for row in limits.thresholds:
        assert 0 < row.bad < row.good < 1, row.id


def test_targets_of_products_are_listed_and_have_an_architecture_row() -> None:
    gpus, branches = KNOWLEDGE.matrix("gpus"), KNOWLEDGE.matrix("driver-branches")
    for product in gpus.products:
        assert gpus.target(product.capability.sm) is not None, product.product
        row = branches.architecture_of(product.capability)
        if row is not None:
            assert row.architecture == product.architecture, product.product
            assert row.last_driver_branch == product.last_driver_branch or product.product_class == "jetson", product.product


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 (80GB HBM3)"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100 SXM5 (80GB HBM3)"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA A10G", "A10"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA GeForce RTX 4090 D", "GeForce RTX 4090 D"),
        ("NVIDIA GB10", "DGX Spark (GB10)"),
        ("Tesla T4", "T4"),
        ("NVIDIA H2000", None),
        ("", None),
    ],
)
def test_products_by_their_nvml_names(name: str, product: str | None) -> None:
    found = KNOWLEDGE.matrix("gpus").product(name)
    assert (found.product if found else None) == product


def test_torch_pins_agree_with_libraries_and_companions() -> None:
    torch, nccl, wheels = KNOWLEDGE.matrix("torch"), KNOWLEDGE.matrix("nccl"), KNOWLEDGE.matrix("nvidia-wheels")
    companions, compilers = KNOWLEDGE.matrix("companions"), KNOWLEDGE.matrix("host-compilers")
    toolkits = KNOWLEDGE.matrix("cuda-toolkits")
    for release in torch.releases:
        assert companions.pair(release.version) is not None, release.version
        for wheel in filter(None, (release.x86_64, release.aarch64)):
            assert LibraryVersion.parse(wheel.glibc) == compilers.glibc(wheel.tag), release.version
            if not wheel.cuda:
                assert not wheel.pins, release.version
                continue
            assert toolkits.knows(CudaVersion.parse(wheel.cuda)), release.version
            version = LibraryVersion.parse(wheel.pinned("nccl"))
            if version is not None and version.numbers[:2] >= (2, 18):
                assert nccl.release(version), f"{release.version} pins NCCL {version}"
            for library in ("cudnn", "nccl"):
                name = wheel.pins[library].partition("==")[0] if library in wheel.pins else ""
                carrier = wheels.package(name)
                if (
                    carrier is not None
                    and CudaVersion.parse(wheel.cuda).major >= 12
                    and wheel.pinned(library) not in {r.version for r in carrier.releases}
                ):
                    assert LibraryVersion.parse(wheel.pinned(library)) < LibraryVersion.parse(carrier.releases[-1].version), (
                        release.version,
                        library,
                    )
    for row in torch.binary_arches:
        assert any(release.version.startswith(f"{row.torch}.") for release in torch.releases), row.torch


def test_engines_pin_torch_releases_that_are_known() -> None:
    torch, companions = KNOWLEDGE.matrix("torch"), KNOWLEDGE.matrix("companions")
    for name in ("vllm", "sglang"):
        for release in companions.package(name).releases:
            assert any(release.accepts("torch", row.version) for row in torch.releases), f"{name} {release.version}"
    for name, package in companions.packages.items():
        assert package.newest == package.releases[0].version, name
        assert name == re.sub(r"[-_.]+", "-", name).lower()


def test_nccl_codes_are_the_codes_of_their_versions() -> None:
    for release in KNOWLEDGE.matrix("nccl").releases:
        assert str(LibraryVersion.from_nccl_code(release.code)) == release.version


def test_compiler_ranges_do_not_overlap() -> None:
    compilers, toolkits = KNOWLEDGE.matrix("host-compilers"), KNOWLEDGE.matrix("cuda-toolkits")
    for release in toolkits.releases:
        version = LibraryVersion.parse(release.version)
        for architecture in ("", "aarch64"):
            rows = [row for row in compilers.limits if row.covers(version) and row.cpu_architecture == architecture]
            assert len(rows) == 1 or (architecture == "aarch64" and not rows and release.cuda < CudaVersion(12, 2)), (
                release.version,
                architecture,
            )


def test_cudnn_support_lines_are_ranges() -> None:
    for release in KNOWLEDGE.matrix("cudnn").releases:
        for line in release.support:
            assert CudaVersion.parse(line.first_cuda) <= CudaVersion.parse(line.last_cuda), release.version
            assert ComputeCapability.parse(line.min_compute_capability) <= ComputeCapability.parse(line.max_compute_capability), (
                release.version
            )


def test_xid_buckets_and_codes_reach_each_other() -> None:
    errors = KNOWLEDGE.matrix("error-codes")
    used, known = {row.bucket for row in errors.xids}, {row.bucket for row in errors.xid_buckets}
    assert used == known


def test_forward_compat_names_known_branches() -> None:
    compat, branches = KNOWLEDGE.matrix("forward-compat"), KNOWLEDGE.matrix("driver-branches")
    for row in (*compat.image_rules, *compat.container_rules):
        assert all(branches.branch(number) for number in row.branches), row.cuda
        assert not row.basis.may_carry_error
    for row in compat.packages:
        for text in row.driver_versions:
            assert branches.native_cuda(DriverVersion.parse(text)) == CudaVersion.parse(row.cuda), row.cuda


# --- lookups as checks use them ---------------------------------------------------------------------------------------


def test_floor_is_lower_than_the_toolkit_driver() -> None:
    toolkits = KNOWLEDGE.matrix("cuda-toolkits")
    assert toolkits.floor(CudaVersion(12, 8)).min_driver == "525.60.13"
    assert toolkits.first_of(CudaVersion(12, 8)).toolkit_driver == "570.26"
    assert toolkits.floor(CudaVersion(14, 0)) is None
    assert not toolkits.knows(CudaVersion(12, 7))
    assert not toolkits.first_of(CudaVersion(13, 5)).driver_basis.may_carry_warning


def test_vulkan_betas_are_no_measure() -> None:
    branches = KNOWLEDGE.matrix("driver-branches")
    for text, beta in (
        ("550.40.53", True),
        ("550.40.07", False),
        ("535.43.02", False),
        ("535.43.09", True),
        ("580.94.11", True),
        ("580.95.05", False),
    ):
        assert branches.is_developer_beta(DriverVersion.parse(text)) is beta, text


def test_driver_issues_end_where_they_were_mended() -> None:
    branches = KNOWLEDGE.matrix("driver-branches")
    found = {
        text: {row.id for row in branches.issues_of(DriverVersion.parse(text))}
        for text in ("560.35.05", "570.172.08", "595.58.03", "615.71.09", "550.163.01")
    }
    assert found["560.35.05"] == {"p2p-hang-560"}
    assert found["570.172.08"] == {"hang-a100-amd"}
    assert found["595.58.03"] == {"host-register"}
    assert "host-register" not in found["615.71.09"]
    assert not found["550.163.01"]


def test_forward_compatibility_never_says_no_by_silence() -> None:
    compat = KNOWLEDGE.matrix("forward-compat")
    assert compat.allows(CudaVersion(13, 0), 535) is True
    assert compat.allows(CudaVersion(13, 0), 525) is None
    assert compat.allows(CudaVersion(14, 0), 580) is None
    assert [compat.eligible(name) for name in ("datacenter", "geforce", "rtx-pro", "")] == [True, False, None, None]


def test_nccl_issues_by_version() -> None:
    nccl = KNOWLEDGE.matrix("nccl")

    def issues(text: str) -> dict[str, Any]:
        return {row.id: row for row in nccl.issues_of(LibraryVersion.parse(text))}

    assert "nccl-07" in issues("2.18.1")
    assert issues("2.18.1")["nccl-07"].is_bounded
    assert issues("2.18.1")["nccl-07"].basis.may_carry_error
    assert not issues("2.20.5")["nccl-14"].is_bounded
    assert not issues("2.20.5")["nccl-13"].basis.may_carry_warning
    assert "nccl-18" not in issues("2.26.3")
    assert not any(row.is_bounded and row.basis.may_carry_error for row in issues("2.28.9").values())


def test_environment_rules() -> None:
    variables = KNOWLEDGE.matrix("env-vars")

    def problems(name: str, value: str) -> list[str]:
        return [row.problem for row in variables.rules_for(name, value)]

    assert problems("NCCL_P2P_DISABLE", "1") == ["disables-fast-path"]
    assert problems("NCCL_P2P_DISABLE", "0") == []
    assert problems("NCCL_P2P_LEVEL", "NVL") == []
    assert problems("NCCL_P2P_LEVEL", "NVLINK") == ["invalid-value"]
    assert problems("NCCL_SOCKET_IFNAME", "eth0, eth1") == ["invalid-value"]
    assert problems("NCCL_SOCKET_IFNAME", "^docker0,lo") == []
    assert problems("NCCL_SOCKET_IFNAME", "=enp90s0np0") == ["risky"]
    assert problems("NCCL_PROTO", "Foo") == ["invalid-value"]
    assert problems("NCCL_PROTO", "^LL128") == []
    assert problems("NCCL_PROTO", "LL,LL128") == ["risky"]
    assert problems("TORCH_CUDA_ARCH_LIST", "9.0a;10.0+PTX") == []
    assert problems("TORCH_CUDA_ARCH_LIST", "sm_90") == ["invalid-value"]
    assert problems("CUDA_VISIBLE_DEVICES", "") == ["hides"]
    assert problems("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512") == []
    assert problems("NVIDIA_DRIVER_CAPABILITIES", "utility") == ["hides"]
    rule = next(row for row in variables.rules_for("NCCL_IB_GID_INDEX", "3"))
    assert [rule.holds_with(LibraryVersion.parse(text)) for text in ("2.20.5", "2.21.5")] == [False, True]
    assert rule.holds_with(None) is None


def test_companions_and_torch() -> None:
    companions, torch = KNOWLEDGE.matrix("companions"), KNOWLEDGE.matrix("torch")
    engine = companions.release("vllm", "0.26.0")
    assert engine.accepts("torch", "2.11.0+cu130") is True
    assert engine.accepts("torch", "2.10.0") is False
    assert engine.accepts("numpy-of-another-world", "1") is None
    assert engine.accepts("torch", "not a version") is None
    assert companions.pair("2.13.0+cu130").torchvision == "==0.28.0"
    wheel = torch.default_wheel("2.11.0+cu130", "x86_64")
    assert (wheel.cuda, wheel.triton, wheel.pinned("cudnn"), wheel.glibc) == ("13.0", "==3.6.0", "9.19.0.56", "2.28")
    assert torch.default_wheel("2.10.0", "aarch64").cuda == ""
    assert "sm_120" in torch.arches("2.11.0", CudaVersion(13, 0)).targets()
    assert torch.release("9.9.9") is None
    assert set(KNOWLEDGE.matrix("nvidia-wheels").siblings("nvidia-nccl-cu13")) == {"nvidia-nccl-cu12"}


def test_features() -> None:
    gpus = KNOWLEDGE.matrix("gpus")
    table = {
        (id, text): gpus.has(id, ComputeCapability.parse(text))
        for id in ("fp8-mma", "wgmma", "tcgen05")
        for text in ("8.0", "8.9", "9.0", "10.3", "12.0")
    }
    assert [table["fp8-mma", text] for text in ("8.0", "8.9", "9.0", "12.0")] == [False, True, True, True]
    assert [table["wgmma", text] for text in ("8.9", "9.0", "10.3", "12.0")] == [False, True, False, False]
    assert [table["tcgen05", text] for text in ("9.0", "10.3", "12.0")] == [False, True, False]
    assert gpus.has("time-travel", ComputeCapability(9, 0)) is None
    target = gpus.target("sm_100")
    assert [target.accepted_by(CudaVersion(12, minor)) for minor in (6, 8)] == [False, True]
    assert not gpus.target("sm_70").accepted_by(CudaVersion(13, 0))


# --- overlays and errors ----------------------------------------------------------------------------------------------

HEAD = "matrix: gpus\nschema: 1\nseen: 2026-11-30\nsources:\n  ours: {title: our own list}\n"
ROW = """products:
  - product: H900
    name_regex: 'H(?:900|200)'
    compute_capability: '9.0'
    architecture: Hopper
    product_class: datacenter
    min_driver: '580.1'
    capability_basis: {source: ours, confidence: measured}
    basis: {source: ours, confidence: measured}
"""


def overlay(directory: Path, text: str, name: str = "gpus.yaml") -> Knowledge:
    (directory / name).write_text(text, encoding="utf-8")
    return Knowledge((directory,))


def test_overlay_rows_come_first_and_the_rest_stays(tmp_path: Path) -> None:
    gpus = overlay(tmp_path, HEAD + ROW).matrix("gpus")
    assert gpus.product("NVIDIA H900").min_driver == "580.1"
    assert gpus.product("NVIDIA H200").product == "H900"
    assert gpus.product("NVIDIA H100 PCIe") is not None
    assert gpus.products[0].basis.sources == ("our own list",)
    assert gpus.products[0].basis.seen == "2026-11-30"
    assert len(gpus.products) == len(KNOWLEDGE.matrix("gpus").products) + 1


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("'580.1'", "580.1"), 12, "min_driver: expected text, found 580.1"),
        (("    min_driver", "    min_drivr"), 12, "min_drivr: unknown key"),
        (("    architecture: Hopper\n", ""), 7, "architecture: missing"),
        (("confidence: measured}\n", "confidence: certain}\n"), 13, "confidence: expected one of documented, derived, measured, community"),
        (("basis: {source: ours", "basis: {source: theirs"), 13, "no source has the id 'theirs'"),
        (("basis: {source: ours, ", "basis: {"), 13, "basis.source: missing"),
        (("  - product: H900", "  - - product: H900"), 8, ""),
        (("seen: 2026-11-30", "seen: yesterday"), 3, "seen: expected a date"),
        (("matrix: gpus", "matrix: gpu"), 1, "matrix: expected gpus"),
        (("schema: 1", "schema: 2"), 2, "schema: expected 1"),
        (("    product_class: datacenter", "    product_class: datacenter\n    product_class: geforce"), 12, "stands twice"),
        (("    architecture: Hopper", "    architecture: [Hopper"), 11, ""),
        (("products:", "prodcts:"), 6, "prodcts: unknown key"),
    ],
)
def test_broken_overlays_name_file_line_and_key(tmp_path: Path, change: tuple[str, str], line: int, says: str) -> None:
    knowledge = overlay(tmp_path, (HEAD + ROW).replace(*change, 1))
    with pytest.raises(MatrixError) as caught:
        knowledge.matrix("gpus")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'gpus.yaml'}:{line}: "), message
    assert says in message


@pytest.mark.parametrize("content", [b"", b"[]", b"just text", b"\xff\xfe\x00", b"a: &x [*x]", b"? [a]\n: b"])
def test_nonsense_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gpus.yaml").write_bytes(content)
    with pytest.raises(MatrixError, match=r"gpus\.yaml"):
        Knowledge((tmp_path,)).matrix("gpus")


def test_a_fault_in_the_second_overlay_is_traced_to_it(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    (good / "gpus.yaml").write_text(HEAD + ROW, encoding="utf-8")
    (bad / "gpus.yaml").write_text(HEAD + ROW.replace("'580.1'", "580.1"), encoding="utf-8")
    with pytest.raises(MatrixError, match=re.escape(f"{bad / 'gpus.yaml'}:12: products[0].min_driver")):
        Knowledge((good, bad)).matrix("gpus")


def test_lint_reports_every_file(tmp_path: Path) -> None:
    overlay(tmp_path, HEAD + ROW)
    assert lint_overlay(tmp_path) == ()
    overlay(tmp_path, "matrix: gpu\n", "gpu.yaml")
    overlay(tmp_path, HEAD.replace("gpus", "torch") + "releases: 3\n", "torch.yaml")
    problems = lint_overlay(tmp_path)
    assert len(problems) == 2
    assert "no matrix has that name" in problems[0]
    assert "torch.yaml:6: releases: expected a list" in problems[1]


def test_unknown_matrix() -> None:
    with pytest.raises(MatrixError, match="no matrix is called 'phones': known are companions"):
        KNOWLEDGE.matrix("phones_matrix")
    with pytest.raises(MatrixError, match=r"no matrix file is called 'remedies/phones\.yaml'"):
        load_table("remedies/phones", dict)


# --- the stamp and the compiled form ----------------------------------------------------------------------------------


def test_stamp_goes_stale_after_120_days() -> None:
    seen = datetime.date.fromisoformat(KNOWLEDGE.stamp(TODAY).date)
    assert not KNOWLEDGE.stamp(seen + datetime.timedelta(days=120)).stale
    assert KNOWLEDGE.stamp(seen + datetime.timedelta(days=121)).stale
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", KNOWLEDGE.stamp(TODAY).digest)


def test_overlays_change_the_digest_and_may_freshen_the_date(tmp_path: Path) -> None:
    plain = KNOWLEDGE.stamp(TODAY)
    stamp = overlay(tmp_path, HEAD + ROW).stamp(TODAY)
    assert stamp.digest != plain.digest
    assert stamp.date == "2026-11-30"
    assert stamp.overlays == (str(tmp_path),)


def test_compiled_matrices_say_the_same(tmp_path: Path) -> None:
    compile_directory(MATRICES, tmp_path)
    assert {path.relative_to(tmp_path).with_suffix("").as_posix() for path in tmp_path.rglob("*.json")} == {*stems_under(MATRICES), "index"}
    index = json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))
    assert (index["digest"], index["date"]) == (KNOWLEDGE.stamp(TODAY).digest, KNOWLEDGE.stamp(TODAY).date)
    compiled = json.loads((tmp_path / "gpus.json").read_text(encoding="utf-8"))
    assert to_plain(KNOWLEDGE.matrix("gpus"))["products"][0]["basis"] == compiled["products"][0]["basis"]


def test_the_build_refuses_a_malformed_matrix(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "gpus.yaml").write_text(HEAD + ROW.replace("'9.0'", "9.0"), encoding="utf-8")
    with pytest.raises(MatrixError, match=r"gpus\.yaml:9: products\[0\]\.compute_capability"):
        compile_directory(source, target)
