"""A service that should answer does not, or serves something else than what was planned.

What it looks at
    With `--service URL` only: the answers of /health and /v1/models of vLLM or SGLang. Beside a model that has to fit (`--model`, or a profile
    with one): whether it is the one that is served, and whether the longest request that the engine takes fits the KV cache by the arithmetic of dsdoctor plan.

Why it matters
    A port that is open is no engine that works: /health answers 503 while weights are loaded, and after the engine died. A service
    that takes requests longer than its cache holds preempts or refuses them under load, long after the start looked fine.

Sources
    vLLM: OpenAI-compatible server (health, models); SGLang: native and OpenAI-compatible APIs; matrices/deepseek-models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Gpu, HttpAnswer, Section, ServedModel, ServiceAnswers, State, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

if TYPE_CHECKING:
    from dsdoctor.purpose import Planned

SOURCES = ("vLLM: OpenAI-compatible server — https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",)
NEEDS_KEY = (401, 403)
LOADING = 503

ADDRESS = "http://127.0.0.1:8000"
OK = HttpAnswer(path="/health", status=200, elapsed_s=0.01)
LISTED = HttpAnswer(path="/v1/models", status=200, elapsed_s=0.01)
REFUSED = HttpAnswer(path="/health", error="Connection refused")
EIGHT_H20 = tuple(Gpu(index=index, name="NVIDIA H20", memory_total_bytes=97871 << 20, compute_capability="9.0") for index in range(8))


def _service(health: HttpAnswer = OK, listing: HttpAnswer = LISTED, *models: ServedModel) -> ServiceAnswers:
    return ServiceAnswers(url=ADDRESS, health=health, listing=listing, models=models or None)


V3 = ServedModel(id="deepseek-ai/DeepSeek-V3", max_model_len=32768)

CASES = (
    Case(
        title="nobody listens",
        sections={"service": _service(REFUSED, HttpAnswer(path="/v1/models", error="Connection refused"))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="Connection refused",
    ),
    Case(
        title="it loads, or the engine died",
        sections={"service": _service(HttpAnswer(path="/health", status=503), LISTED, V3)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="503",
    ),
    Case(
        title="it hangs",
        sections={"service": _service(HttpAnswer(path="/health", error="no answer within 5 s"), LISTED, V3)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="no answer within 5 s",
    ),
    Case(
        title="it begins an answer and does not end it",
        sections={"service": _service(HttpAnswer(path="/health", status=200, error="the answer did not end in time"), LISTED, V3)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="did not end",
    ),
    Case(
        title="healthy, and another model than the one that was planned",
        sections={"service": _service(OK, LISTED, ServedModel(id="Qwen/Qwen3-8B")), "gpus": EIGHT_H20},
        models=("DeepSeek-V3",),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="Qwen/Qwen3-8B",
    ),
    Case(
        title="it takes longer requests than its cache can hold",
        sections={"service": _service(OK, LISTED, ServedModel(id="deepseek-ai/DeepSeek-V3", max_model_len=163840)), "gpus": EIGHT_H20},
        models=("DeepSeek-V3",),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="163,840",
    ),
    Case(title="healthy", sections={"service": _service(OK, LISTED, V3)}, status=Status.PASS),
    Case(
        title="healthy, and what was planned",
        sections={"service": _service(OK, LISTED, V3), "gpus": EIGHT_H20},
        models=("DeepSeek-V3",),
        status=Status.PASS,
    ),
    Case(
        title="healthy, and the list of models is no such list",
        sections={"service": _service(OK, LISTED)},
        status=Status.UNKNOWN,
        says="models",
    ),
    Case(
        title="the list of models wants a key",
        sections={"service": _service(OK, HttpAnswer(path="/v1/models", status=401))},
        status=Status.UNKNOWN,
        says="401",
    ),
    Case(
        title="the probe was ended",
        sections={"service": unreadable("probe endpoint gave no answer within 15 s")},
        status=Status.UNKNOWN,
        says="15 s",
    ),
    Case(title="no service was named", sections={}, status=Status.NOT_APPLICABLE, says="--service"),
)


@check("service.unhealthy", Severity.ERROR, settle="curl -i <address>/health", cases=CASES)
def unhealthy(
    service: Section[ServiceAnswers], plans: tuple[Planned, ...], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge the answers, and compare what is served with what was planned."""
    answers = service.value
    if answers is None:
        if service.state in (State.NOT_ASKED, State.ABSENT):
            yield NotApplicable(reason="no service was named (--service URL)")
        else:
            yield Doubt(subject="service", reason=f"it could not be asked: {service.why}")
        return
    if answers.health.status != 200 or answers.health.error:
        yield _not_healthy(answers, remedies)
        return
    if answers.models is None:
        yield Doubt(
            subject=answers.url,
            reason=f"it is healthy, and which models it serves is not known: {_said(answers.listing) or 'the answer is no list of models'}",
            settle=f"curl -i {answers.url}/v1/models",
        )
        return
    for planned in plans:
        yield from _against_plan(answers, answers.models, planned, remedies)


def _not_healthy(answers: ServiceAnswers, remedies: Remedies) -> Finding:
    health = answers.health
    cause = {
        200: "It began an answer that no engine gives to this question, and did not end it.",
        None: "Nobody listens there, a firewall drops it, or the server no longer comes to answer.",
        LOADING: "It still loads its weights, or its engine died while the server lives on: its log tells which.",
        404: "There is no health endpoint at this address: it may be another server, or one behind a prefix.",
    }.get(health.status, "The server answers, and says that it does not work.")
    if health.status in NEEDS_KEY:
        cause = "Something in front of the engine asks for a key; the engine's own address needs none for its health."
    return Finding(
        subject=answers.url,
        summary=f"The service at {answers.url} is not healthy: /health {_said(health)}.",
        cause=cause,
        evidence=tuple(
            Evidence(where=f"service.{name}", value=f"{answer.path} {_said(answer) or 'answers 200'} ({answer.elapsed_s:g} s)")
            for name, answer in (("health", health), ("listing", answers.listing))
        ),
        expected="200 from /health",
        remedies=remedies("general", address=answers.url),
        sources=SOURCES,
    )


def _said(answer: HttpAnswer) -> str:
    """How an answer went, as a verb; empty for a whole 200."""
    if answer.status is None:
        return f"gives no answer ({answer.error})"
    told = f" ({answer.error})" if answer.error else ""
    return f"answers {answer.status}{told}" if answer.status != 200 or told else ""


def _against_plan(answers: ServiceAnswers, models: tuple[ServedModel, ...], planned: Planned, remedies: Remedies) -> Iterator[Finding]:
    wanted = planned.candidate.model.name
    served = next((model for model in models if _is(wanted, model.id) or _is(wanted, model.root)), None)
    if served is None:
        names = ", ".join(model.id for model in models[:4]) or "none"
        yield Finding(
            subject=answers.url,
            summary=f"The service at {answers.url} serves {names}, not {wanted}.",
            cause="Requests for a name that is not served are refused; --served-model-name gives a model another name.",
            evidence=tuple(
                Evidence(where="service.models", value=f"{model.id}{f' ({model.root})' if model.root else ''}") for model in models[:4]
            )
            or (Evidence(where="service.models", value="an empty list"),),
            expected=wanted,
            remedies=remedies("other-model", address=answers.url, model=wanted),
            sources=SOURCES,
            severity=Severity.WARNING,
        )
        return
    placed = planned.plan.placed if planned.plan else None
    if placed is None or not placed.max_context or served.max_model_len is None or served.max_model_len <= placed.max_context:
        return
    yield Finding(
        subject=served.id,
        summary=f"{served.id} takes requests of {served.max_model_len:,} tokens; by its size the KV cache here holds {placed.max_context:,}.",
        cause=f"{placed.reason}. A longer request is refused or preempted under load, long after the start looked fine.",
        evidence=(
            Evidence(where=f"service.models[{served.id}].max_model_len", value=f"{served.max_model_len:,}"),
            Evidence(where="longest request by dsdoctor plan", value=f"{placed.max_context:,}"),
        ),
        expected=f"--max-model-len (SGLang: --context-length) of {placed.max_context:,} at most, or more room for the cache",
        remedies=remedies("context", address=answers.url, model=wanted, context=str(placed.max_context)),
        sources=SOURCES,
        severity=Severity.WARNING,
    )


def _is(wanted: str, name: str) -> bool:
    """Whether a served name is that model: the last part of a path or repository, without regard to case."""
    last = name.rstrip("/").rpartition("/")[2]
    return bool(last) and re.sub(r"[^a-z0-9.]", "", last.lower()) == re.sub(r"[^a-z0-9.]", "", wanted.lower())
