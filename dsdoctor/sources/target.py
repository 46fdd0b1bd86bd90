"""Find the patient's Python and run small scripts in it.

Locating reads only files (`pyvenv.cfg`, directory names), so that it works when the interpreter itself is broken.
"""

from __future__ import annotations

import atexit
import functools
import importlib.resources
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from dsdoctor.errors import UsageError
from dsdoctor.sources.child import Ended
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Target

# With -c the first entry of sys.path is the current directory: a file named packaging.py in it must not shadow the patient's.
BOOTSTRAP = (
    "import sys\nif sys.path[:1] == ['']: del sys.path[0]\n"
    "exec(compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec'), {'__name__': '__main__'})"
)


def locate(host: Host, python: str | None) -> Target:
    """The interpreter to examine: `--python`, else $VIRTUAL_ENV, else $CONDA_PREFIX, else the doctor's own or the first on PATH.

    Raises UsageError when `python` names nothing that could be an interpreter.
    """
    if python is not None:
        return examine(host, _asked_for(host, python), "--python")
    gone: list[str] = []
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        directory = host.environment.get(variable, "")
        if not directory:
            continue
        path = _interpreter_in(host, directory)
        if path is not None:
            return examine(host, path, _with_note(variable, gone))
        gone.append(f"{variable}={directory} holds no interpreter")
    on_path = host.which("python3") or host.which("python")
    if on_path is not None and _is_isolated_tool(host.own_interpreter):
        return examine(host, _behind_shim(host, on_path), _with_note("PATH", gone))
    return examine(host, host.own_interpreter, _with_note("own", gone))


def examine(host: Host, path: str, chosen_by: str) -> Target:
    """What the files around an interpreter say about it, without running it."""
    prefix = _prefix_of(host, path)
    settings = read_pyvenv_cfg(host, prefix)
    home = settings.get("home", "")
    base_prefix = os.path.dirname(home.rstrip("/")) if home else prefix
    version = _python_version(host, path, prefix, settings)
    return Target(
        path=path,
        chosen_by=chosen_by,
        prefix=prefix,
        base_prefix=base_prefix,
        kind=_kind(host, path, prefix, settings),
        python_version=version.rstrip("t"),
        site_packages=_site_packages(host, prefix, base_prefix, version, settings),
    )


def run_script(
    host: Host,
    target: Target,
    script: str,
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
) -> Ended:
    """Run `probes/in_target/<script>` by the target interpreter; its answer is in `result`. Writes no bytecode into the patient's tree."""
    child_environment = {**(host.environment if environment is None else environment), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        path = os.path.join(script_folder(), script)
    except OSError as error:
        return Ended(outcome="not_found", detail=f"no directory for a copy of {script} can be written: {error}")
    return host.run([target.path, "-c", BOOTSTRAP, path, *arguments], timeout_s=timeout_s, environment=child_environment)


@functools.lru_cache(maxsize=1)
def script_folder() -> str:
    """The folder of the scripts. Inside an archive no other interpreter finds them: then a private copy, removed when this process ends.

    Raises OSError when no copy can be written.
    """
    folder = importlib.resources.files("dsdoctor.probes") / "in_target"
    if isinstance(folder, Path):
        return str(folder)
    copy = tempfile.mkdtemp(prefix="dsdoctor-", dir=_temporary_directory())
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for script in folder.iterdir():
        if script.name.endswith(".py"):
            Path(copy, script.name).write_bytes(script.read_bytes())
    return copy


def _temporary_directory() -> str:
    """Where temporary files go; the shared memory where the whole disk is read-only, as in many containers."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "/dev/shm"


def read_pyvenv_cfg(host: Host, prefix: str) -> dict[str, str]:
    """The keys of a virtual environment's pyvenv.cfg in lower case; empty when there is none."""
    try:
        text = host.read_text(f"{prefix}/pyvenv.cfg", 1 << 16)
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _asked_for(host: Host, python: str) -> str:
    expected = "expected a Python executable, or the directory of a venv or conda environment"
    if "/" not in python and not host.exists(python):
        found = host.which(python)
        if found is None:
            raise UsageError(f"--python {python}: no such command on PATH; {expected}")
        return found
    path = os.path.abspath(os.path.expanduser(python)) if host.root == "/" else python
    if host.is_directory(path):
        found = _interpreter_in(host, path)
        if found is None:
            raise UsageError(f"--python {python}: a directory without bin/python; {expected}")
        return found
    if not host.exists(path):
        if _is_dangling_in_venv(host, path):
            return path
        raise UsageError(f"--python {python}: no such file or directory; {expected}")
    if not host.is_executable(path):
        raise UsageError(f"--python {python}: a file that may not be executed; {expected}")
    return path


def _interpreter_in(host: Host, directory: str) -> str | None:
    """The interpreter of an environment; a dangling link counts, since a broken environment is a patient too."""
    directory = directory.rstrip("/") or "/"
    candidates = [f"{directory}/bin/{name}" for name in ("python", "python3")]
    return next((path for path in candidates if host.exists(path)), None) or next(
        (path for path in candidates if _is_dangling_in_venv(host, path)), None
    )


def _is_dangling_in_venv(host: Host, path: str) -> bool:
    return host.read_link(path) is not None and host.exists(f"{os.path.dirname(os.path.dirname(path))}/pyvenv.cfg")


def _with_note(chosen_by: str, gone: list[str]) -> str:
    return f"{chosen_by} ({'; '.join(gone)})" if gone else chosen_by


def _is_isolated_tool(own_interpreter: str) -> bool:
    """Whether the doctor runs from an environment of its own (pipx, uv tool, zipapp), which is never the patient."""
    as_tool = "/pipx/" in own_interpreter or "/uv/tools/" in own_interpreter
    return as_tool or not os.path.isdir(os.path.dirname(os.path.abspath(__file__)))


def _behind_shim(host: Host, path: str) -> str:
    """The interpreter that a pyenv shim would start, where files tell it."""
    folder, name = os.path.split(path)
    root, last = os.path.split(folder)
    if last != "shims":
        return path
    chosen = host.environment.get("PYENV_VERSION") or host.first_line(f"{root}/version") or ""
    behind = f"{root}/versions/{chosen.split(':')[0]}/bin/{name}"
    return behind if chosen and host.exists(behind) else path


def _prefix_of(host: Host, path: str) -> str:
    """The environment that an interpreter belongs to: that of its own path when it is a venv or conda one, else that of its real file."""
    folder = os.path.dirname(path)
    for prefix in (os.path.dirname(folder), folder):
        if host.exists(f"{prefix}/pyvenv.cfg") or host.is_directory(f"{prefix}/conda-meta"):
            return prefix
    real = os.path.dirname(os.path.dirname(host.real_path(path)))
    return real if host.exists(f"{real}/lib") else os.path.dirname(folder)


def _kind(host: Host, path: str, prefix: str, settings: Mapping[str, str]) -> str:
    if settings:
        return "uv" if "uv" in settings else "venv"
    if host.is_directory(f"{prefix}/conda-meta"):
        return "conda"
    return "uv" if "/uv/python/" in host.real_path(path) else "system"


def _python_version(host: Host, path: str, prefix: str, settings: Mapping[str, str]) -> str:
    """major.minor, with a t for free-threaded builds, or empty."""
    trees = {os.path.basename(found) for found in host.glob(f"{prefix}/lib/python3.*") if re.fullmatch(r".*/python3\.\d+t?", found)}
    if len(trees) == 1:
        return trees.pop().removeprefix("python")
    named = re.fullmatch(r"python(3\.\d+t?)", os.path.basename(host.real_path(path)))
    if named:
        return named[1]
    stated = re.match(r"3\.\d+", settings.get("version", "") or settings.get("version_info", ""))
    return stated[0] if stated else ""


def _site_packages(host: Host, prefix: str, base_prefix: str, version: str, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Directories of installed packages in the order of sys.path."""
    alone = bool(settings) and settings.get("include-system-site-packages", "false").lower() != "true"
    found = [*_python_path(host)]
    if not version:
        found += host.glob(f"{prefix}/lib/python3.*/site-packages")
    elif alone:
        found += _of_prefix(prefix, version)
    else:
        found += [*(_of_prefix(prefix, version) if settings else ()), *_user_site(host, version), *_of_prefix(base_prefix, version)]
    seen: dict[str, str] = {}
    for directory in found:
        if host.is_directory(directory):
            seen.setdefault(host.real_path(directory), directory)
    return tuple(seen.values())


def _python_path(host: Host) -> Iterator[str]:
    return (entry for entry in host.environment.get("PYTHONPATH", "").split(":") if entry.startswith("/"))


def _user_site(host: Host, version: str) -> Iterator[str]:
    home = host.environment.get("PYTHONUSERBASE") or (host.environment.get("HOME", "") and f"{host.environment['HOME']}/.local")
    if home and not host.environment.get("PYTHONNOUSERSITE"):
        yield f"{home}/lib/python{version.rstrip('t')}/site-packages"


def _of_prefix(prefix: str, version: str) -> Iterator[str]:
    if prefix == "/usr":
        # Debian and Fedora send what pip installs to /usr/local and keep /usr for the distribution's own packages.
        for local in ("dist-packages", "site-packages"):
            yield f"/usr/local/lib/python{version}/{local}"
        yield f"/usr/local/lib64/python{version}/site-packages"
        yield "/usr/lib/python3/dist-packages"
        yield f"/usr/lib/python{version}/dist-packages"
    yield f"{prefix}/lib/python{version}/site-packages"
    yield f"{prefix}/lib64/python{version}/site-packages"
