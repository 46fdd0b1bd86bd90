"""The driver asks for something to be done with a GPU: a reset, a reboot.

What it looks at
    The recovery action that NVML reports for each GPU (driver 570 and later).

Why it matters
    It is the driver's own opinion of what brings the GPU back, so it goes before everything that we conclude from counters and logs. Older
    drivers do not report it, which is not the same as "nothing to do"; neither is a number that nobody here knows.

Sources
    NVML field 230, GPU_RECOVERY_ACTION; NVIDIA GPU Memory Error Management.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, named, why_unknown
from dsdoctor.facts import Gpu, Missing, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import ErrorCodes, HealthLimits

RESET_REQUIRED = "(NVML code 16)"
"""NVML_ERROR_RESET_REQUIRED, as the probe writes it."""
NVML_SOURCE = "NVML API reference: return codes — https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html"


def asking(action: int | None) -> tuple[Gpu, ...]:
    """A GPU that reports this action."""
    return (Gpu(index=2, name="NVIDIA H200", recovery_action=action),)


CASES = (
    Case(title="a reset", sections={"gpus": asking(1)}, status=Status.FAIL, severity=Severity.ERROR, says="reset"),
    Case(title="a reboot of the node", sections={"gpus": asking(2)}, status=Status.FAIL, severity=Severity.ERROR, says="reboot"),
    Case(title="work may end first", sections={"gpus": asking(4)}, status=Status.FAIL, severity=Severity.WARNING, says="then reset"),
    Case(title="the domain of a rack", sections={"gpus": asking(5)}, status=Status.FAIL, severity=Severity.ERROR, says="IMEX"),
    Case(
        title="NVML answers nothing before a reset",
        sections={"gpus": (Gpu(index=2, missing={"name": Missing(State.UNREADABLE, "GPU requires reset (NVML code 16)")}),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="requires a reset",
    ),
    Case(title="nothing", sections={"gpus": asking(0)}, status=Status.PASS),
    Case(title="an action that nobody here knows", sections={"gpus": asking(9)}, status=Status.UNKNOWN, says="9"),
    Case(
        title="an older driver does not say",
        sections={"gpus": (Gpu(index=0, missing={"recovery_action": Missing(State.ABSENT, "Not Supported")}),)},
        status=Status.UNKNOWN,
        says="not the same as none",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check(
    "gpu.recovery-action",
    Severity.ERROR,
    explains=("gpu.xid", "gpu.ecc-uncorrectable", "gpu.row-remap", "gpu.nvlink-down", "smoke.*"),
    settle="nvidia-smi -q | grep -i 'recovery action'",
    cases=CASES,
)
def recovery_action(
    gpus: tuple[Gpu, ...], error_codes_matrix: ErrorCodes, health_limits_matrix: HealthLimits, remedies: Remedies
) -> Iterator[Finding | Doubt]:
    """Pass on what the driver asks for."""
    unknown = []
    for gpu in gpus:
        action = gpu.recovery_action
        refusals = {field: missing.why for field, missing in gpu.missing.items() if RESET_REQUIRED in missing.why}
        if refusals and not action:
            field, why = next(iter(refusals.items()))
            yield Finding(
                subject=named(gpu),
                summary=f"{named(gpu)} answers no question before it is reset: NVML says that it requires a reset.",
                cause="Until then jobs on this GPU fail.",
                evidence=(Evidence(where=f"gpus[{gpu.index}].missing[{field}]", value=why),),
                expected="answers from NVML",
                remedies=remedies("action-1", gpu=str(gpu.index)),
                sources=(NVML_SOURCE,),
                fleet_case="action-1",
            )
            continue
        if action is None:
            unknown.append((gpu, f"not available, which is not the same as none ({why_unknown(gpu, 'recovery_action')})"))
            continue
        known, row = error_codes_matrix.recovery_action(action), health_limits_matrix.recovery_action(action)
        if action and (known is None or row is None):
            unknown.append((gpu, f"the driver asks for action {action}, which is unknown here; it is not none"))
        elif known is not None and row is not None:
            yield Finding(
                subject=named(gpu),
                severity=capped(row.severity, row.basis),
                summary=f"The driver asks for action on {named(gpu)}: {known.meaning}.",
                cause="Until then jobs on this GPU fail or stay slow.",
                evidence=(Evidence(where=gpu.where or f"gpus[{gpu.index}].recovery_action", value=f"{action} ({known.name})"),),
                expected="recovery action none",
                remedies=remedies(f"action-{action}", gpu=str(gpu.index)),
                sources=known.basis.sources,
                fleet_case=f"action-{action}",
            )
    yield from doubts("recovery action", unknown)
