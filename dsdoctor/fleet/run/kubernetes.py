"""Kubernetes: an indexed Job with one pod on each node, through kubectl; its logs are the answers, and it is deleted afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dsdoctor.errors import InputError, UsageError
from dsdoctor.fleet.run import process
from dsdoctor.fleet.run.engine import HERE, Ask, CommandOf, Engine, Hear, NoAnswer, Node, one_line
from dsdoctor.sources.child import Ended

ANSWER_S = 30.0
"""For one call of kubectl."""
POLL_S = 1.0
AT_ONCE = 16
"""Logs that are read at the same time."""
SPARE_S = 30.0
"""The Job outlives the waiting for it: whoever waits says why it took so long."""
KEPT_S = 3600
"""After that long the cluster takes the Job away even when nobody else does."""
ANY_NUMBER = "\x00"
NUMBER = "DSDOCTOR_NODE"
CONTAINER = "dsdoctor"
HOST_LABEL = "kubernetes.io/hostname"
INSTANCE = "app.kubernetes.io/instance"
WAITING_FOR_EVER = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
Plain = Mapping[str, Any]


def engine(named: Sequence[Node], namespace: str, image: str, pod_spec: str, options: Sequence[str]) -> Engine:
    """kubectl with the user's options; the nodes are those named, else all that pods may run on."""
    if shutil.which("kubectl") is None:
        raise UsageError("--kubernetes: kubectl is not on this machine")
    if not image and not pod_spec:
        raise UsageError("--kubernetes needs --image IMAGE: one that has dsdoctor in it, or your engine's with dsdoctor installed")
    return _Kubernetes(named, namespace, image, read_pod_spec(pod_spec), options)


def read_pod_spec(path: str) -> Plain:
    """A site's own pod spec (tolerations, runtimeClassName, volumes, a container's resources …) from a YAML file."""
    if not path:
        return {}
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"--pod-spec {path}: {one_line(str(getattr(error, 'strerror', None) or error))}") from None
    if not isinstance(found, dict) or not all(isinstance(item, dict) for item in found.get("containers") or ()):
        raise InputError(f"--pod-spec {path}: expected the fields of a pod's spec, such as tolerations and containers")
    return found


def manifest(
    name: str, nodes: Sequence[Node], command: Sequence[str], image: str, pod_spec: Plain, timeout_s: float, *, meeting: bool = False
) -> dict[str, Any]:
    """The Job: as many indexed pods as nodes, no two on one node, each ended after `timeout_s` seconds and never started again."""
    labels = {"app.kubernetes.io/name": "dsdoctor", INSTANCE: name}
    own = dict((list(pod_spec.get("containers") or ()) or [{}])[0])
    words = [word.replace("$(", "$$(").replace(ANY_NUMBER, f"$({NUMBER})") for word in command]
    container = {
        "resources": {},
        **own,
        "name": CONTAINER,
        "image": image or own.get("image", ""),
        "command": words,
        "env": [
            {"name": NUMBER, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}},
            *_environment(own),
        ],
    }
    term = {"matchExpressions": [{"key": HOST_LABEL, "operator": "In", "values": [node.address for node in nodes]}]}
    pod = {
        "tolerations": [{"operator": "Exists"}],
        **pod_spec,
        "restartPolicy": "Never",
        "containers": [container],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}},
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {INSTANCE: name}}, "topologyKey": HOST_LABEL}
                ]
            },
        },
        **({"subdomain": name} if meeting else {}),
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(nodes),
            "parallelism": len(nodes),
            "backoffLimitPerIndex": 0,
            "activeDeadlineSeconds": int(timeout_s + SPARE_S),
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        # Without an address of its own: its name resolves to the pods, also before they are ready.
        "spec": {"clusterIP": "None", "selector": {INSTANCE: name}, "publishNotReadyAddresses": True},
    }
    return {"apiVersion": "v1", "kind": "List", "items": [job, *([service] if meeting else [])]}


def _environment(own: Plain) -> list[Plain]:
    """The container's own variables; without a request for GPUs, the one with which NVIDIA's runtime shows all of them."""
    entries = list(own.get("env") or ())
    asks = any("gpu" in str(key) for kind in (own.get("resources") or {}).values() if isinstance(kind, Mapping) for key in kind)
    if not asks and not any(entry.get("name") == "NVIDIA_VISIBLE_DEVICES" for entry in entries):
        entries += [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]
    return entries


def nodes_in(listing: Plain, selector: Plain) -> list[Node]:
    """The nodes of `kubectl get nodes -o json` with these labels: those that offer GPUs where any does, else all."""
    found, with_gpus = [], set()
    for item in listing.get("items") or ():
        head, status = item.get("metadata") or {}, item.get("status") or {}
        labels = head.get("labels") or {}
        if any(labels.get(key) != value for key, value in selector.items()):
            continue
        name = str(head.get("name", ""))
        ready: Plain = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), {})
        why = (
            ""
            if ready.get("status") == "True"
            else one_line(f"Kubernetes: the node is not ready: {ready.get('message') or 'it says nothing'}")
        )
        if any(str(key).endswith("/gpu") and str(count) != "0" for key, count in (status.get("capacity") or {}).items()):
            with_gpus.add(name)
        found.append(Node(name=name, address=str(labels.get(HOST_LABEL, name)), unreachable=why))
    return [node for node in found if not with_gpus or node.name in with_gpus]


def _fail(answers: Iterable[asyncio.Future[Ended]], watching: asyncio.Task[None]) -> None:
    """A fault while pods were watched is told by all who wait, instead of time that runs out."""
    error = None if watching.cancelled() else watching.exception()
    for answer in answers:
        if error is not None and not answer.done():
            answer.set_exception(error)


class _Kubernetes:
    spawns = False
    meeting_host = f"{HERE}-0.{HERE}"

    def __init__(self, named: Sequence[Node], namespace: str, image: str, pod_spec: Plain, options: Sequence[str]) -> None:
        self._named, self._image, self._pod_spec = named, image, pod_spec
        self._kubectl = ["kubectl", *options, *(("--namespace", namespace) if namespace else ())]

    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the cluster; what is not ready cannot be asked."""
        listing = asyncio.run(self._listing("get", "nodes", "-o", "json"))
        found = nodes_in(listing, self._pod_spec.get("nodeSelector") or {})
        if self._named:
            every = {node.name: node for node in nodes_in(listing, {})} | {node.name: node for node in found}
            found = [every.get(wanted.name, Node(name=wanted.name, unreachable="Kubernetes has no such node")) for wanted in self._named]
        if not found:
            raise UsageError("--kubernetes: the cluster has no node for it (kubectl get nodes)")
        return tuple(
            Node(name=node.name, address=node.address, number=number, unreachable=node.unreachable) for number, node in enumerate(found)
        )

    @asynccontextmanager
    async def session(self, nodes: Sequence[Node], command_of: CommandOf, timeout_s: float) -> AsyncIterator[Ask]:
        """Create the Job, read its pods as they end, and delete it however this ends."""
        name = f"dsdoctor-{secrets.token_hex(4)}"
        command = [word.replace(HERE, name) for word in command_of(ANY_NUMBER)]
        meeting = any(name in word for word in command)
        job = manifest(name, nodes, command, self._image, self._pod_spec, timeout_s, meeting=meeting)
        answers: dict[str, asyncio.Future[Ended]] = {node.name: asyncio.get_running_loop().create_future() for node in nodes}
        heard: dict[str, Hear] = {}

        async def ask(node: Node, hear: Hear) -> Ended:
            heard[node.name] = hear
            return await answers[node.name]

        try:
            await self._said("create", "-f", "-", stdin=json.dumps(job).encode())
            watching = asyncio.create_task(self._watch(name, answers, heard))
            watching.add_done_callback(lambda done: _fail(answers.values(), done))
            try:
                yield ask
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        finally:
            for future in answers.values():
                future.cancel()
            kinds = "job,service" if meeting else "job"
            with contextlib.suppress(UsageError):
                await asyncio.shield(self._said("delete", kinds, name, "--ignore-not-found", "--wait=false"))

    async def _watch(self, job: str, answers: Mapping[str, asyncio.Future[Ended]], heard: Mapping[str, Hear]) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def look(pod: Plain) -> None:
            node = str((pod.get("spec") or {}).get("nodeName", ""))
            answer = answers.get(node)
            if answer is None:
                self._tell_all(pod, answers, heard)
            elif not answer.done():
                async with places:
                    ended = await self._ended(pod, heard.get(node))
                if ended is not None and not answer.done():
                    answer.set_result(ended)

        while True:
            try:
                pods = (await self._listing("get", "pods", "-l", f"{INSTANCE}={job}", "-o", "json")).get("items") or ()
                await asyncio.gather(*(look(pod) for pod in pods))
            except UsageError as error:
                # The API server may be gone for a moment; the deadlines end this.
                for hear in heard.values():
                    hear(str(error))
            await asyncio.sleep(POLL_S)

    async def _ended(self, pod: Plain, hear: Hear | None) -> Ended | None:
        """How a pod ended, with its log; None while it runs. Raises nothing: a log that cannot be read is tried again."""
        name = str((pod.get("metadata") or {}).get("name", ""))
        status = pod.get("status") or {}
        container: Plain = next(iter(status.get("containerStatuses") or ()), {})
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in WAITING_FOR_EVER:
            return Ended(outcome="not_found", detail=one_line(f"{waiting['reason']}: {waiting.get('message', '')}"))
        if status.get("phase") not in ("Succeeded", "Failed"):
            if hear is not None:
                hear(f"pod {name}: {waiting.get('reason') or status.get('phase', 'Unknown')}")
            return None
        ended = state.get("terminated") or {}
        if not ended:
            return Ended(
                outcome="not_found", detail=one_line(f"pod {status.get('reason', 'failed')}: {status.get('message', 'no container ran')}")
            )
        try:
            log = await self._said("logs", name, "--container", CONTAINER)
        except UsageError as error:
            if hear is not None:
                hear(str(error))
            return None
        code, signal = int(ended.get("exitCode", 0)), int(ended.get("signal") or 0)
        return Ended(outcome="signal" if signal else "exited", code=signal or code, stdout=log, stderr=str(ended.get("message") or ""))

    def _tell_all(self, pod: Plain, answers: Mapping[str, asyncio.Future[Ended]], heard: Mapping[str, Hear]) -> None:
        """A pod without a node: whoever has no answer may be the one it waits for."""
        conditions = (pod.get("status") or {}).get("conditions") or ()
        why = next((one.get("message") for one in conditions if one.get("type") == "PodScheduled" and one.get("status") == "False"), None)
        for node, answer in answers.items():
            if why and not answer.done() and node in heard:
                heard[node](f"a pod finds no node: {why}")

    async def _listing(self, *arguments: str) -> Plain:
        try:
            found = json.loads(await self._said(*arguments))
        except (ValueError, RecursionError):
            raise UsageError(f"kubectl {arguments[0]} {arguments[1]} answered with something that is no JSON") from None
        return found if isinstance(found, dict) else {}

    async def _said(self, *arguments: str, stdin: bytes = b"") -> str:
        """What kubectl prints. Raises UsageError with its own words."""
        try:
            ended = await asyncio.wait_for(process.run([*self._kubectl, *arguments], stdin=stdin), ANSWER_S)
        except asyncio.TimeoutError:
            raise UsageError(f"kubectl {arguments[0]}: no answer within {ANSWER_S:.0f} s") from None
        except NoAnswer as error:
            raise UsageError(f"kubectl {arguments[0]}: {error}") from None
        if not ended.ok:
            raise UsageError(f"kubectl {arguments[0]}: {one_line(ended.stderr) or ended.said()}")
        return ended.stdout
