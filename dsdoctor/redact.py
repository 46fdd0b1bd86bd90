"""Take out of a snapshot what identifies people and machines, and leave what judgement needs.

Host and user names, home directories, addresses, UUIDs and secrets become pseudonyms. One name has one pseudonym within a document; a
shortened GPU UUID stays a prefix of that GPU's pseudonym; a pseudonym stands for itself, so that redacting twice changes nothing. Only
values change, never keys. A user name goes as a whole path component, never as a part of another word. A version such as 9.19.0.56 is no
address: addresses are looked for only in text that people or programs wrote, and not where the words before them say version.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dsdoctor.facts import EnvironmentVariable, Snapshot

SECRET = "<redacted>"

FREE_TEXT = frozenset(
    {
        "value",
        "why",
        "detail",
        "text",
        "evidence",
        "error_text",
        "import_error",
        "cuda_error",
        "cudnn_error",
        "error",
        "status",
        "label",
        "made_by",
    }
    | {"where", "interfaces", "via", "url"}
)
"""Fields with text that people and programs wrote: only there can an address or a bare host name stand."""

ORDINARY_WORDS = frozenset(
    {"root", "user", "users", "admin", "nobody", "daemon", "runner", "jovyan", "ubuntu", "debian", "centos", "linux", "kernel"}
    | {"host", "node", "master", "worker", "head", "login", "server", "client", "localhost", "container", "docker", "slurm"}
    | {"gpu", "cuda", "nvidia", "driver", "nccl", "python", "torch", "vllm", "sglang", "triton", "conda", "venv", "env"}
    | {"bin", "lib", "lib64", "opt", "usr", "local", "share", "src", "app", "apps", "home", "tmp", "scratch", "shared", "public"}
    | {"data", "models", "model", "cache", "work", "workspace", "default", "none", "unknown", "true", "false", "auto"}
)
"""Names that identify nobody and mean other things elsewhere: replaced where they stand as a name, and not looked for further."""

SYSTEM_ROOTS = ("/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/boot/")
PUBLIC_DOMAINS = ("pytorch.org", "nvidia.com", "github.com", "huggingface.co")


def redact(snapshot: Snapshot, *, hosts: Collection[str] = (), users: Collection[str] = ()) -> Snapshot:
    """The snapshot without names, addresses, serial numbers and secrets; `hosts` and `users` are names that the caller knows besides."""
    names = _Names("\n".join(_texts(snapshot)))
    _learn(snapshot, names, hosts, users)
    rewritten: Snapshot = _rewrite(snapshot, "", names)
    return dataclasses.replace(rewritten, redacted=True)


# --- pseudonyms -------------------------------------------------------------------------------------------------------


class _Pseudonyms:
    """Gives each distinct name the next pseudonym that the document does not hold yet; a pseudonym stands for itself."""

    def __init__(self, make: Callable[[int], str], shape: str, document: str) -> None:
        self._make = make
        self._shape = re.compile(shape)
        self._taken = set(self._shape.findall(document))
        self._number = 0
        self.given: dict[str, str] = {}

    def of(self, name: str) -> str:
        if self._shape.fullmatch(name):
            return name
        if name not in self.given:
            self._number += 1
            while self._make(self._number) in self._taken and self._number < len(self._taken) + len(self.given) + 1:
                self._number += 1
            self.given[name] = self._make(self._number)
        return self.given[name]


class _Names:
    """The pseudonyms of one document, a family for each kind of name."""

    def __init__(self, document: str) -> None:
        def family(make: Callable[[int], str], shape: str) -> _Pseudonyms:
            return _Pseudonyms(make, shape, document)

        self.users = _Pseudonyms(lambda number: "user" if number == 1 else f"user{number}", r"user\d*", "")
        self.hosts = family(lambda number: f"host-{number}", r"host-\d+")
        self.others = family(lambda number: f"name-{number}", r"name-\d+")
        self.serials = family(lambda number: f"serial-{number}", r"serial-\d+")
        self.uuids = family(lambda number: f"{number:08d}-0000-0000-0000-000000000000", r"\d{8}-0000-0000-0000-0{12}")
        self.macs = family(lambda number: f"{number:012x}", r"0{8}[0-9a-f]{4}")
        self.guids = family(lambda number: f"0000:0000:0000:{number:04x}", r"0000:0000:0000:[0-9a-f]{4}")
        self.ipv4 = family(_documentation_address, r"(?:192\.0\.2|198\.51\.100|203\.0\.113)\.\d{1,3}")
        self.ipv6 = family(lambda number: f"2001:db8::{number:x}", r"2001:db8::[0-9a-f]{1,4}")
        self.gpu_uuids: list[str] = []
        """With their prefix, GPU- or MIG-."""
        self.path_users: frozenset[str] = frozenset()
        self.host_words: re.Pattern[str] | None = None


def _documentation_address(number: int) -> str:
    """The n-th address of the blocks reserved for documentation (RFC 5737)."""
    block, rest = divmod(min(number, 762) - 1, 254)
    return f"{('192.0.2', '198.51.100', '203.0.113')[block]}.{rest + 1}"


# --- first pass: learn which names stand for somebody -----------------------------------------------------------------

_HOME = re.compile(r"(/(?:home|homes|Users)/)((?<=/Users/)[^/:;,'\"\n]+(?=/)|[^\s/:;,'\"()<>\[\]]+)")
_LOG_HOST = re.compile(
    r"^((?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)?) |(?=\S+:\d+:\d+ \[\d+\] NCCL ))"
    r"([A-Za-z0-9][\w.-]*)(?= [\w./@-]+(?:\[\d+\])?:|:\d+:\d+ )",
    re.MULTILINE,
)
"""The host in a syslog line and in a line of NCCL's log."""
_EC2_HOST = re.compile(r"(?<![\w.-])ip-\d+-\d+-\d+-\d+(?:\.[A-Za-z0-9-]+)*(?![\w-])")
_NODE_LIST = re.compile(r"([A-Za-z0-9.-]*)\[([0-9,-]+)\]")


def _learn(snapshot: Snapshot, names: _Names, hosts: Collection[str], users: Collection[str]) -> None:
    for gpu in sorted(snapshot.sections.gpus.value or (), key=lambda gpu: gpu.index):
        for text in (gpu.uuid, *(instance.uuid for instance in gpu.mig_instances)):
            for found in _FULL_UUID.finditer(text):
                names.gpu_uuids.append(f"{(found.group(1) or '').upper()}{found.group(2).lower()}")
                names.uuids.of(found.group(2).lower())
    homes = [item.path for item in snapshot.sections.directories.value or () if item.purpose == "home"]
    found_users = list(users)
    for host in hosts:
        _host(host, names)
    for variable in snapshot.sections.environment.value or ():
        kind = _kind_of(variable.name, variable.value)
        if kind == "user":
            found_users.append(variable.value)
        elif kind == "host":
            _rewrite_hosts(variable.value, names)
            for name in _listed_nodes(variable.value):
                _host(name, names)
        elif variable.name == "HOME":
            homes.append(variable.value)
    found_users += [path.rstrip("/").rpartition("/")[2] for path in homes if path.rstrip("/").count("/") > 1]
    for text in _texts(snapshot):
        found_users += [found.group(2) for found in _HOME.finditer(text)]
        for found in _LOG_HOST.finditer(text):
            _host(found.group(2), names)
    for user in found_users:
        if user not in ("", "root"):
            names.users.of(user)
    names.path_users = frozenset(name for name in names.users.given if name.lower() not in ORDINARY_WORDS)
    telling = [name for name in names.hosts.given if len(name) > 2 and name.lower() not in ORDINARY_WORDS]
    if telling:
        alternatives = "|".join(re.escape(name) for name in sorted(telling, key=len, reverse=True))
        names.host_words = re.compile(rf"(?<![\w.-])(?:{alternatives})(?:\.[A-Za-z0-9-]+)*(?![\w-])")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        for item in dataclasses.fields(value):
            yield from _texts(getattr(value, item.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _texts(item)


def _listed_nodes(text: str) -> Iterator[str]:
    """The single names in Slurm's short form: gpu[01-02,7] is gpu01, gpu02, gpu7."""
    for prefix, ranges in _NODE_LIST.findall(text):
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if first.isdecimal() and (last or first).isdecimal():
                for number in range(int(first), min(int(last or first), int(first) + 4096) + 1):
                    yield f"{prefix}{number:0{len(first)}d}"


# --- second pass: replace ---------------------------------------------------------------------------------------------


def _rewrite(value: Any, field: str, names: _Names) -> Any:
    """The value with its texts redacted; what needs no change is handed back as it is."""
    if isinstance(value, str):
        return _text(value, field, names)
    if value is None or isinstance(value, (bool, int, float, enum.Enum)):
        return value
    if isinstance(value, EnvironmentVariable):
        return dataclasses.replace(value, value=_variable(value.name, value.value, names))
    if isinstance(value, Mapping):
        return {key: _rewrite(item, field, names) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_rewrite(item, field, names) for item in value)
    old = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    changed = {name: new for name, item in old.items() if (new := _rewrite(item, name, names)) is not item}
    return dataclasses.replace(value, **changed) if changed else value


def _text(text: str, field: str, names: _Names) -> str:
    if field == "cluster_uuid":
        return _fabric(text)
    if field in FREE_TEXT:
        return _free(_everywhere(text, names), names)
    return text if text.isalnum() and len(text) < 12 else _everywhere(text, names)


# --- environment variables --------------------------------------------------------------------------------------------

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|PASS|PASSPHRASE|KEY|APIKEY|CREDENTIALS?|PAT|AUTH|COOKIE|DSN)$|SECRET|PASSWORD|PASSWD", re.IGNORECASE
)
_HOST_NAME = re.compile(
    r"(?:^|_)(?:HOST|HOSTS|HOSTNAME|HOSTLIST|HOSTID|NODENAME|NODELIST|NODE_LIST|NODE_NAME|POD|POD_NAME|ADDR|ADDRESS|HEAD_NODE|IP|IPADDR|"
    r"COMM_ID|INIT_METHOD|ENDPOINT|NO_PROXY)$",
    re.IGNORECASE,
)
_USER_NAME = re.compile(r"^(?:.*_)?(?:USER|LOGNAME|USERNAME)$")
_OTHER_NAME = re.compile(r"(?:^|_)(?:NAMESPACE|JOB_NAME|ACCOUNT|CLUSTER_NAME|CLUSTER|TEAM|PROJECT|ENTITY)$")
_VERSION_NAME = re.compile(r"(?:^|_)(?:VERSION|VER|PACKAGE|RELEASE|TAG|REQUIRE)(?:_|$)")
_SWITCH = re.compile(r"[01]?|true|false|yes|no|on|off|none|null", re.IGNORECASE)
_NO_NAME = re.compile(r"\d*|true|false|yes|no|on|off|none|null|auto|localhost|localhost\.localdomain|[./~@].*", re.IGNORECASE | re.DOTALL)


def _kind_of(name: str, value: str) -> str:
    """What a variable holds, by its name: secret, user, host, name or other."""
    if _SECRET_NAME.search(name) and not _SWITCH.fullmatch(value):
        return "secret"
    if _NO_NAME.fullmatch(value):
        return "other"
    if _USER_NAME.match(name):
        return "user"
    if _HOST_NAME.search(name):
        return "host"
    return "name" if _OTHER_NAME.search(name) else "other"


def _variable(name: str, value: str, names: _Names) -> str:
    kind = _kind_of(name, value)
    if kind == "secret":
        return SECRET
    if kind == "user":
        return _user(value, names)
    if kind == "host":
        return _rewrite_hosts(_everywhere(value, names), names)
    if kind == "name":
        return names.others.of(value)
    if "DEVICES" in name:
        value = _PARTIAL_UUID.sub(lambda found: _partial_uuid(found.group(), names), value)
    value = _everywhere(value, names)
    return value if _VERSION_NAME.search(name) else _free(value, names)


_HOST_TOKEN = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?(?:\[[0-9,-]+\](?:[\w.-]*[A-Za-z0-9])?)*")
_HOSTS = re.compile(r"(?:\w+://)?(?:<redacted>@)?[\w.,:/\[\]\s-]*", re.DOTALL)
_NOT_A_HOST = re.compile(r"(\w+://|<[\w-]+>@?|(?<![\w.-])[0-9a-f]*::[0-9a-f:.]*|\s+|/[^\s,]*)")


def _rewrite_hosts(value: str, names: _Names) -> str:
    """A value made of hosts: one name, host:port, a URL, a comma list, Slurm's short form."""

    def host(found: re.Match[str]) -> str:
        token = found.group()
        return token if re.fullmatch(r"[\d.]+", token) or _is_public(token) else _host(token, names)

    if not _HOSTS.fullmatch(value):
        return names.hosts.of(value)
    pieces = _NOT_A_HOST.split(_addresses(value, names))
    return "".join(piece if number % 2 else _HOST_TOKEN.sub(host, piece) for number, piece in enumerate(pieces))


# --- what is recognised by its own form, in whatever field it stands --------------------------------------------------

_UUID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
_FULL_UUID = re.compile(rf"(?<![0-9A-Za-z])(GPU-|MIG-|pod)?({_UUID})(?![0-9A-Za-z])", re.IGNORECASE)
_PARTIAL_UUID = re.compile(r"(?<![\w-])(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]*(?![\w-])")
_CONTAINER_ID = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{64}(?![0-9A-Za-z])")
_MAC = re.compile(r"(?<![0-9A-Za-z:-])[0-9a-f]{2}(?:(?::[0-9a-f]{2}){5,19}|(?:-[0-9a-f]{2}){5})(?![0-9A-Za-z:-])", re.IGNORECASE)
_MAC_IN_NAME = re.compile(r"(?<![0-9A-Za-z])enx([0-9a-f]{12})(?![0-9A-Za-z])")
_GUID = re.compile(r"(?<![0-9A-Za-z:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![0-9A-Za-z:])", re.IGNORECASE)
_SERIAL = re.compile(r"(\bserial(?:[ _]?(?:number|no))?\s*[:=#]\s*)([A-Za-z0-9-]+)", re.IGNORECASE)
_EMAIL = re.compile(
    r"[\w.+-]+@(?:[A-Za-z0-9][A-Za-z0-9-]*\.)+(?!(?:service|socket|scope|slice|target|mount|timer|device|path|so)\b)[A-Za-z]{2,}\b"
)
_LOGIN = re.compile(r"(?<![\w.-])([\w.-]+)@(?=[A-Za-z])")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s'\"]+@")
_URL_HOST = re.compile(r"(?<=://)(<redacted>@)?([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)")
_ASSIGNED_SECRET = re.compile(
    r"((?<![A-Za-z0-9])(?:[A-Za-z0-9]+[_-])*(?:password|passwd|pwd|secret|api[_-]?key|access[_-]?key|token|signature)\s*=\s*"
    r"|(?<![A-Za-z0-9])(?:password|passwd|secret|api[_-]?key)\s*:\s*)[^\s&;,'\"]+",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|nvapi-[\w-]{16,}|xox[a-z]-[\w-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_BEARER = re.compile(r"\b((?:Bearer|Basic) )[A-Za-z0-9+/._~-]{8,}=*")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_TILDE = re.compile(r"(?<![\w/.])~([A-Za-z_][\w.-]*)")
_USER_IN_NAME = re.compile(r"(?<=/)(torchinductor_|tmux-|vscode-)([^\s/:;,'\"]+)")
_PATH = re.compile(r"(?<![\w.])/[^\s:;,'\"()<>]+")


def _everywhere(text: str, names: _Names) -> str:
    text = _PRIVATE_KEY.sub(SECRET, text)
    if "://" in text:
        text = _URL_CREDENTIALS.sub(f"{SECRET}@", text)
        text = _URL_HOST.sub(lambda found: f"{found.group(1) or ''}{_url_host(found.group(2), names)}", text)
    text = _ASSIGNED_SECRET.sub(lambda found: f"{found.group(1)}{SECRET}", text)
    text = _TOKEN.sub(SECRET, _BEARER.sub(lambda found: f"{found.group(1)}{SECRET}", text))
    if "@" in text:
        text = _EMAIL.sub("<e-mail>", text)
        text = _LOGIN.sub(lambda found: f"{_path_user(found.group(1), names)}@", text)
    text = _FULL_UUID.sub(lambda found: _full_uuid(found, names), text)
    text = _CONTAINER_ID.sub("<id>", text)
    text = _MAC.sub(lambda found: _mac(found.group(), names), text)
    text = _MAC_IN_NAME.sub(lambda found: f"enx{names.macs.of(found.group(1))}", text)
    text = _GUID.sub(lambda found: names.guids.of(found.group().lower()), text)
    text = _SERIAL.sub(lambda found: f"{found.group(1)}{names.serials.of(found.group(2))}", text)
    if "~" in text:
        text = _TILDE.sub(lambda found: f"~{_path_user(found.group(1), names)}", text)
    if "/" in text:
        text = _HOME.sub(lambda found: f"{found.group(1)}{_user(found.group(2), names)}", text)
        text = _USER_IN_NAME.sub(lambda found: f"{found.group(1)}{_user(found.group(2), names)}", text)
        text = _PATH.sub(lambda found: _path(found.group(), names), text)
    return text


def _user(name: str, names: _Names) -> str:
    return name if name == "root" else names.users.of(name)


def _path_user(name: str, names: _Names) -> str:
    return names.users.of(name) if name in names.path_users else name


def _path(path: str, names: _Names) -> str:
    if path.startswith(SYSTEM_ROOTS):
        return path
    hosts = names.hosts.given
    return "/".join(
        _host(part, names) if part in hosts and part.lower() not in ORDINARY_WORDS else _path_user(part, names) for part in path.split("/")
    )


def _host(name: str, names: _Names) -> str:
    """The pseudonym of a host; its short and its full name share it."""
    if _NO_NAME.fullmatch(name) or re.fullmatch(r"[\d.:]+", name):
        return name
    short = name if "[" in name else name.partition(".")[0]
    return names.hosts.of(name if short.lower() in ORDINARY_WORDS or short.isdecimal() else short)


def _is_public(host: str) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in PUBLIC_DOMAINS)


def _url_host(host: str, names: _Names) -> str:
    return host if _is_public(host) else _addresses(host, names) if _IPV4.fullmatch(host) else _host(host, names)


def _full_uuid(found: re.Match[str], names: _Names) -> str:
    prefix, uuid = found.group(1) or "", found.group(2).lower().replace("_", "-")
    if not uuid.strip("0-"):
        return found.group()  # all zeros is NVML's way to say that there is none
    return f"{prefix}{names.uuids.of(uuid)}"


def _fabric(text: str) -> str:
    """The same pseudonym in every document, unlike other UUIDs: only so can reports of several nodes show that they share a fabric."""
    if not _FULL_UUID.fullmatch(text) or re.fullmatch(r"\d{8}-0000-0000-0000-0{12}", text):
        return text
    return f"fabric-{hashlib.sha256(text.lower().encode()).hexdigest()[:12]}"


def _partial_uuid(text: str, names: _Names) -> str:
    """A shortened UUID: prefix of one GPU stays prefix of that GPU, of several stays of several, of none stays of none."""
    prefix, written = text[:4], text[4:].lower()
    matches = [uuid for uuid in names.gpu_uuids if uuid.startswith(f"{prefix}{written}")]
    if _FULL_UUID.fullmatch(text) or re.fullmatch(r"0{4}\d{4}", written):
        return text
    if len(matches) > 1:
        return f"{prefix}0"
    return f"{prefix}{names.uuids.of(matches[0][4:] if matches else written)[:8]}"


def _mac(text: str, names: _Names) -> str:
    hexes = re.sub(r"[:-]", "", text).lower()
    if not hexes.strip("0") or not hexes.strip("f"):
        return text
    pseudonym = names.macs.of(hexes)
    return ("-" if "-" in text else ":").join(pseudonym[start : start + 2] for start in range(0, len(pseudonym), 2))


# --- what only free text can hold: addresses and bare host names ------------------------------------------------------

_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.-])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?!\w|:)", re.IGNORECASE)
_VERSION_BEFORE = re.compile(
    r"(?:version|\bver\.?|release|driver|firmware|vbios|toolkit|cuda|cudnn|nccl|torch|\blib[\w+-]*|\bcu(?:blas|fft|rand|sparse|solver)\w*|\bnpp"
    r"|\bnv(?:rtc|jitlink|shmem|cc))\W{0,3}(?:\b(?:v|is|of)\b)?\W{0,2}$|[=<>!~]=\s*$|[A-Za-z]/$",
    re.IGNORECASE,
)
_REVISION_AFTER = re.compile(r"[+~]|-\d+(?![\d.])")


def _free(text: str, names: _Names) -> str:
    text = _LOG_HOST.sub(lambda found: f"{found.group(1)}{_host(found.group(2), names)}", text)
    text = _EC2_HOST.sub(lambda found: _host(found.group(), names), text)
    if names.host_words:
        text = names.host_words.sub(lambda found: _host(found.group(), names), text)
    return _addresses(text, names)


def _addresses(text: str, names: _Names) -> str:
    text = _IPV4.sub(lambda found: _ipv4_address(found, names), text)
    return _IPV6.sub(lambda found: _ipv6_address(found.group(), names), text) if text.count(":") > 1 else text


def _ipv4_address(found: re.Match[str], names: _Names) -> str:
    address, text = found.group(), found.string
    octets = [int(part) for part in address.split(".")]
    if max(octets) > 255 or octets[0] in (0, 127) or octets[:2] == [255, 255]:
        return address
    if _VERSION_BEFORE.search(text[max(0, found.start() - 40) : found.start()]) or _REVISION_AFTER.match(text, found.end()):
        return address
    return names.ipv4.of(address)


def _ipv6_address(text: str, names: _Names) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return text
    if address.is_loopback or address.is_unspecified or not any(character.isdecimal() for character in text):
        return text
    return names.ipv6.of(str(address))
