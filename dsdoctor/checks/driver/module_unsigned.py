"""Secure Boot keeps the NVIDIA kernel module from loading.

What it looks at
    Whether Secure Boot (or kernel lockdown) is on, whether the module on disk is signed, whether it is loaded, and what the kernel log says.

Why it matters
    With Secure Boot the kernel loads only modules that are signed with a key it trusts. DKMS builds and signs with a key of its own, which must be
    enrolled once at the console. Until then modprobe says "Key was rejected by service" or "Required key not available", and there is no driver.

Sources
    NVIDIA Driver Installation Guide: Secure Boot; Linux kernel module signing.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import DriverModuleFile, KernelDriver, KernelLog, KernelLogLine, Section, SecureBoot, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

REFUSALS = (
    "key was rejected by service",
    "required key not available",
    "loading of unsigned module is rejected",
    "lockdown: modprobe: unsigned module",
)
"""What the kernel and modprobe print, in lower case."""

NOT_LOADED = absent("no nvidia module is loaded")
UNSIGNED = DriverModuleFile(path="/lib/modules/6.8.0/updates/dkms/nvidia.ko", version="580.95.05", signed=False)
SIGNED = DriverModuleFile(
    path="/lib/modules/6.8.0/updates/dkms/nvidia.ko", version="580.95.05", signed=True, signer="DKMS module signing key"
)

CASES = (
    Case(
        title="Secure Boot is on, the module is not signed",
        sections={"secure_boot": SecureBoot(enabled=True), "driver_module_file": UNSIGNED, "kernel_driver": NOT_LOADED},
        status=Status.FAIL,
        says="not signed",
    ),
    Case(
        title="signed, but with a key that the kernel does not trust",
        sections={
            "secure_boot": SecureBoot(enabled=True),
            "driver_module_file": SIGNED,
            "kernel_driver": NOT_LOADED,
            "kernel_log": KernelLog(lines=(KernelLogLine(text="nvidia: Key was rejected by service"),)),
        },
        status=Status.FAIL,
        says="DKMS module signing key",
    ),
    Case(
        title="Secure Boot is on and the module is loaded",
        sections={
            "secure_boot": SecureBoot(enabled=True),
            "driver_module_file": SIGNED,
            "kernel_driver": KernelDriver(version="580.95.05"),
        },
        status=Status.PASS,
    ),
    Case(
        title="Secure Boot is off",
        sections={"secure_boot": SecureBoot(enabled=False), "driver_module_file": UNSIGNED, "kernel_driver": NOT_LOADED},
        status=Status.PASS,
    ),
    Case(
        title="signed and not loaded, and the kernel log does not say why",
        sections={"secure_boot": SecureBoot(enabled=True), "driver_module_file": SIGNED, "kernel_driver": NOT_LOADED},
        status=Status.UNKNOWN,
        says="trusts",
    ),
    Case(title="nobody looked", sections={"driver_module_file": UNSIGNED}, status=Status.UNKNOWN),
    Case(title="no EFI", sections={"secure_boot": absent("no EFI variables"), "kernel_driver": NOT_LOADED}, status=Status.NOT_APPLICABLE),
    Case(
        title="no module for the running kernel",
        sections={
            "secure_boot": SecureBoot(enabled=True),
            "driver_module_file": absent("no nvidia module is installed"),
            "kernel_driver": NOT_LOADED,
        },
        status=Status.NOT_APPLICABLE,
        says="no nvidia module is installed",
    ),
)


@check(
    "driver.module-unsigned",
    Severity.ERROR,
    explains=("driver.absent", "torch.cuda-unavailable", "gpu.lost", "smoke.*"),
    settle="mokutil --sb-state; modinfo -F signer nvidia; journalctl -k -b | grep -i -e 'key was rejected' -e lockdown",
    cases=CASES,
)
def module_unsigned(
    secure_boot: SecureBoot,
    kernel_driver: Section[KernelDriver],
    driver_module_file: Section[DriverModuleFile],
    kernel_log: Section[KernelLog],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """A module that is on disk and not loaded under Secure Boot was refused."""
    file = driver_module_file.value
    refusal = next(
        (line for line in (kernel_log.value.lines if kernel_log.value else ()) if any(text in line.text.lower() for text in REFUSALS)), None
    )
    enforced = secure_boot.enabled or secure_boot.lockdown in ("integrity", "confidentiality")
    if kernel_driver.value is not None:
        return
    if driver_module_file.state is State.ABSENT:
        yield NotApplicable(reason=driver_module_file.why or "no nvidia module is installed")
        return
    if not enforced:
        return
    if file is None or (file.signed is not False and refusal is None):
        if file is None:
            yield Doubt(subject="nvidia.ko", reason="Secure Boot is on, no module is loaded, and the module file was not looked at")
        else:
            yield Doubt(
                subject="nvidia.ko",
                reason="Secure Boot is on, the module is there and not loaded; whether the kernel trusts its key is not known",
            )
        return
    evidence = [
        Evidence(where="secure_boot", value=f"enabled: {secure_boot.enabled}, lockdown: {secure_boot.lockdown or 'not known'}"),
        Evidence(where="driver_module_file", value=f"{file.path}: {f'signed by {file.signer}' if file.signed else 'not signed'}"),
    ]
    if refusal is not None:
        evidence.append(Evidence(where=refusal.where or "kernel_log.lines", value=refusal.text))
    yield Finding(
        subject="nvidia.ko",
        summary=(
            "Secure Boot is on, and the NVIDIA kernel module is not signed, so the kernel refuses it."
            if file.signed is False
            else f"Secure Boot is on, and the kernel does not trust the key that signed the NVIDIA module ({file.signer or 'unknown signer'})."
        ),
        cause="The kernel loads only modules signed with an enrolled key. A module that DKMS built is signed with DKMS's own key, which must be enrolled once.",
        evidence=tuple(evidence),
        expected="a module signed with a key that the firmware or the machine owner enrolled",
        remedies=(*remedies("enrol-key")[:1], *remedies("distribution-signed")[:1], *remedies("secure-boot-off")[:1]),
    )
