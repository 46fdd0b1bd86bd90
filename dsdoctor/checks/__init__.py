"""Judgement: one problem per file, listed in `CHECKS` in the order of a report."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from dsdoctor.checks._check import Check
from dsdoctor.checks.attention.fa3_unusable import fa3_unusable
from dsdoctor.checks.capacity.checkpoint_damaged import checkpoint_damaged
from dsdoctor.checks.capacity.does_not_fit import does_not_fit
from dsdoctor.checks.capacity.load_time import load_time
from dsdoctor.checks.container.cgroup_revoked import cgroup_revoked
from dsdoctor.checks.container.missing_capability import missing_capability
from dsdoctor.checks.container.no_gpu_access import no_gpu_access
from dsdoctor.checks.cuda.library_shadowed import library_shadowed
from dsdoctor.checks.cudnn.mixed_sublibraries import mixed_sublibraries
from dsdoctor.checks.cudnn.shadowed import shadowed as cudnn_shadowed
from dsdoctor.checks.cudnn.version_mismatch import version_mismatch as cudnn_version_mismatch
from dsdoctor.checks.deepep.requirements import requirements as deepep_requirements
from dsdoctor.checks.deepgemm.requirements import requirements as deepgemm_requirements
from dsdoctor.checks.driver.absent import absent as driver_absent
from dsdoctor.checks.driver.branch_eol import branch_eol
from dsdoctor.checks.driver.compat_library_shadows import compat_library_shadows
from dsdoctor.checks.driver.forward_compat_unsupported import forward_compat_unsupported
from dsdoctor.checks.driver.known_bad import known_bad as driver_known_bad
from dsdoctor.checks.driver.library_mismatch import library_mismatch
from dsdoctor.checks.driver.module_options import module_options
from dsdoctor.checks.driver.module_unsigned import module_unsigned
from dsdoctor.checks.driver.open_module_required import open_module_required
from dsdoctor.checks.driver.ptx_too_new import ptx_too_new
from dsdoctor.checks.driver.stub_library import stub_library
from dsdoctor.checks.driver.too_old_for_cuda import too_old_for_cuda
from dsdoctor.checks.driver.too_old_for_gpu import too_old_for_gpu
from dsdoctor.checks.driver.wrong_module_bound import wrong_module_bound
from dsdoctor.checks.env.cuda_visible_devices import cuda_visible_devices
from dsdoctor.checks.env.disables_fast_path import disables_fast_path
from dsdoctor.checks.env.invalid_value import invalid_value
from dsdoctor.checks.fabric.imex import imex as fabric_imex
from dsdoctor.checks.fabric.manager_not_running import manager_not_running
from dsdoctor.checks.fabric.manager_version_mismatch import manager_version_mismatch
from dsdoctor.checks.fabric.not_initialized import not_initialized
from dsdoctor.checks.flashinfer.requirements import requirements as flashinfer_requirements
from dsdoctor.checks.flashmla.requirements import requirements as flashmla_requirements
from dsdoctor.checks.gpu.ecc_uncorrectable import ecc_uncorrectable
from dsdoctor.checks.gpu.in_use import in_use
from dsdoctor.checks.gpu.inforom_corrupted import inforom_corrupted
from dsdoctor.checks.gpu.lost import lost as gpu_lost
from dsdoctor.checks.gpu.mig_limits import mig_limits
from dsdoctor.checks.gpu.mixed_firmware import mixed_firmware as gpu_mixed_firmware
from dsdoctor.checks.gpu.mixed_products import mixed_products
from dsdoctor.checks.gpu.no_fp8 import no_fp8
from dsdoctor.checks.gpu.nvlink_down import nvlink_down
from dsdoctor.checks.gpu.nvlink_errors import nvlink_errors
from dsdoctor.checks.gpu.orphan_memory import orphan_memory
from dsdoctor.checks.gpu.persistence_mode import persistence_mode
from dsdoctor.checks.gpu.recovery_action import recovery_action
from dsdoctor.checks.gpu.retired_pages import retired_pages
from dsdoctor.checks.gpu.row_remap import row_remap
from dsdoctor.checks.gpu.throttled import throttled
from dsdoctor.checks.gpu.xid import xid as gpu_xid
from dsdoctor.checks.nccl.crashed import crashed as nccl_crashed
from dsdoctor.checks.nccl.duplicate import duplicate as nccl_duplicate
from dsdoctor.checks.nccl.known_bad import known_bad as nccl_known_bad
from dsdoctor.checks.nccl.missing import missing as nccl_missing
from dsdoctor.checks.nccl.shadowed import shadowed as nccl_shadowed
from dsdoctor.checks.nccl.version_differs import version_differs as nccl_version_differs
from dsdoctor.checks.network.wrong_interface import wrong_interface
from dsdoctor.checks.package.abi_mismatch import abi_mismatch
from dsdoctor.checks.package.file_conflict import file_conflict
from dsdoctor.checks.package.import_fails import import_fails as package_import_fails
from dsdoctor.checks.package.pin_conflict import pin_conflict
from dsdoctor.checks.package.torch_companion_mismatch import torch_companion_mismatch
from dsdoctor.checks.package.triton_torch_mismatch import triton_torch_mismatch
from dsdoctor.checks.pcie.acs_redirect import acs_redirect
from dsdoctor.checks.pcie.aer_errors import aer_errors
from dsdoctor.checks.pcie.chipset_attached import chipset_attached
from dsdoctor.checks.pcie.iommu_translation import iommu_translation
from dsdoctor.checks.pcie.link_degraded import link_degraded
from dsdoctor.checks.pcie.p2p_broken import p2p_broken
from dsdoctor.checks.pcie.replay_rate import replay_rate
from dsdoctor.checks.profile.component_missing import component_missing
from dsdoctor.checks.profile.node_needs import node_needs
from dsdoctor.checks.profile.smoke_not_run import smoke_not_run
from dsdoctor.checks.rdma.device_rights import device_rights
from dsdoctor.checks.rdma.link_degraded import link_degraded as rdma_link_degraded
from dsdoctor.checks.rdma.link_down import link_down
from dsdoctor.checks.rdma.link_flapping import link_flapping
from dsdoctor.checks.rdma.mixed_firmware import mixed_firmware as rdma_mixed_firmware
from dsdoctor.checks.rdma.nic_far_from_gpu import nic_far_from_gpu
from dsdoctor.checks.rdma.peermem_errors import peermem_errors
from dsdoctor.checks.rdma.peermem_missing import peermem_missing
from dsdoctor.checks.service.unhealthy import unhealthy
from dsdoctor.checks.smoke.attention import attention
from dsdoctor.checks.smoke.bandwidth import bandwidth
from dsdoctor.checks.smoke.collectives import collectives
from dsdoctor.checks.smoke.fa3 import fa3
from dsdoctor.checks.smoke.fp8_block import fp8_block
from dsdoctor.checks.smoke.fp8_gemm import fp8_gemm
from dsdoctor.checks.smoke.numerics import numerics
from dsdoctor.checks.smoke.rate import rate
from dsdoctor.checks.smoke.silent_corruption import silent_corruption
from dsdoctor.checks.smoke.triton import triton
from dsdoctor.checks.system.cache_not_writable import cache_not_writable
from dsdoctor.checks.system.disk_full import disk_full
from dsdoctor.checks.system.glibc_too_old import glibc_too_old
from dsdoctor.checks.system.libstdcxx_too_old import libstdcxx_too_old
from dsdoctor.checks.system.memlock_limited import memlock_limited
from dsdoctor.checks.system.open_files_limited import open_files_limited
from dsdoctor.checks.system.python_unreadable import python_unreadable
from dsdoctor.checks.system.shm_too_small import shm_too_small
from dsdoctor.checks.toolchain.cuda_home_mismatch import cuda_home_mismatch
from dsdoctor.checks.toolchain.host_compiler import host_compiler
from dsdoctor.checks.toolchain.no_compiler import no_compiler
from dsdoctor.checks.toolchain.no_nvcc import no_nvcc
from dsdoctor.checks.toolchain.no_python_headers import no_python_headers
from dsdoctor.checks.torch.cpu_only_build import cpu_only_build
from dsdoctor.checks.torch.cuda_unavailable import cuda_unavailable
from dsdoctor.checks.torch.import_fails import import_fails
from dsdoctor.checks.torch.lacks_gpu_arch import lacks_gpu_arch
from dsdoctor.checks.wsl.libcuda_path import libcuda_path
from dsdoctor.checks.wsl.unsupported import unsupported
from dsdoctor.errors import unknown_name

CHECKS: tuple[Check, ...] = (
    # driver
    driver_absent,
    library_mismatch,
    wrong_module_bound,
    module_unsigned,
    stub_library,
    compat_library_shadows,
    forward_compat_unsupported,
    too_old_for_cuda,
    ptx_too_new,
    too_old_for_gpu,
    open_module_required,
    module_options,
    driver_known_bad,
    branch_eol,
    # fabric
    manager_version_mismatch,
    manager_not_running,
    not_initialized,
    fabric_imex,
    # gpu
    gpu_lost,
    recovery_action,
    gpu_xid,
    row_remap,
    retired_pages,
    ecc_uncorrectable,
    nvlink_down,
    nvlink_errors,
    throttled,
    mixed_products,
    gpu_mixed_firmware,
    inforom_corrupted,
    mig_limits,
    orphan_memory,
    in_use,
    persistence_mode,
    no_fp8,
    # pcie
    link_degraded,
    acs_redirect,
    iommu_translation,
    chipset_attached,
    replay_rate,
    aer_errors,
    p2p_broken,
    # cudnn, nccl, cuda
    cudnn_shadowed,
    cudnn_version_mismatch,
    mixed_sublibraries,
    nccl_missing,
    nccl_shadowed,
    nccl_duplicate,
    nccl_known_bad,
    nccl_version_differs,
    nccl_crashed,
    library_shadowed,
    # torch
    cpu_only_build,
    lacks_gpu_arch,
    import_fails,
    cuda_unavailable,
    # package
    file_conflict,
    torch_companion_mismatch,
    abi_mismatch,
    package_import_fails,
    triton_torch_mismatch,
    pin_conflict,
    # kernels
    fa3_unusable,
    deepgemm_requirements,
    flashmla_requirements,
    flashinfer_requirements,
    deepep_requirements,
    # system
    shm_too_small,
    memlock_limited,
    glibc_too_old,
    libstdcxx_too_old,
    disk_full,
    cache_not_writable,
    python_unreadable,
    open_files_limited,
    # container, wsl
    no_gpu_access,
    missing_capability,
    cgroup_revoked,
    libcuda_path,
    unsupported,
    # env
    cuda_visible_devices,
    disables_fast_path,
    invalid_value,
    # network
    wrong_interface,
    # rdma
    peermem_missing,
    peermem_errors,
    device_rights,
    link_down,
    rdma_link_degraded,
    link_flapping,
    rdma_mixed_firmware,
    nic_far_from_gpu,
    # toolchain
    no_compiler,
    no_python_headers,
    no_nvcc,
    cuda_home_mismatch,
    host_compiler,
    # smoke
    fp8_gemm,
    fp8_block,
    triton,
    attention,
    fa3,
    collectives,
    bandwidth,
    rate,
    silent_corruption,
    numerics,
    # profile
    component_missing,
    node_needs,
    smoke_not_run,
    # capacity
    does_not_fit,
    checkpoint_damaged,
    load_time,
    # service
    unhealthy,
)


def select(checks: Sequence[Check], *, only: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks whose id, area or glob is in `only` (all when empty) and not in `ignore`. A name that fits nothing is a UsageError."""
    for name in (*only, *ignore):
        if not any(_fits(item, name) for item in checks):
            raise unknown_name("check or area", name, {*(item.id for item in checks), *(item.area for item in checks)})
    return tuple(
        item for item in checks if (not only or any(_fits(item, name) for name in only)) and not any(_fits(item, name) for name in ignore)
    )


def with_causes(chosen: Sequence[Check], checks: Sequence[Check]) -> tuple[Check, ...]:
    """The chosen checks and every check whose problem would explain a finding of one of them, in the order of `checks`."""
    wanted = {item.id for item in chosen}
    return tuple(
        item for item in checks if item.id in wanted or any(fnmatch.fnmatchcase(id, pattern) for pattern in item.explains for id in wanted)
    )


def _fits(check: Check, name: str) -> bool:
    return name == check.area or fnmatch.fnmatchcase(check.id, name)
