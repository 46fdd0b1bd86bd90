"""Say what the interpreter that runs this is: one JSON line on the result descriptor. Standard library only, Python 3.6 and newer."""

import json
import os
import sys
import sysconfig


def describe():
    """Facts of this interpreter as plain data."""
    include = include_directory()
    return {
        "version": "%d.%d.%d" % sys.version_info[:3],
        "implementation": sys.implementation.name,
        "abi_tag": abi_tag(),
        "prefix": sys.prefix,
        "base_prefix": getattr(sys, "base_prefix", sys.prefix),
        "path": [entry for entry in sys.path if entry and os.path.isdir(entry)],
        "include_directory": include,
        "has_python_h": os.path.isfile(os.path.join(include, "Python.h")),
        "externally_managed": is_externally_managed(),
    }


def is_externally_managed():
    """Whether pip refuses to install here (PEP 668); a virtual environment of such an interpreter is free."""
    marker = os.path.join(sysconfig.get_path("stdlib") or "", "EXTERNALLY-MANAGED")
    return sys.prefix == getattr(sys, "base_prefix", sys.prefix) and os.path.isfile(marker)


def include_directory():
    """Where code that compiles against this interpreter looks for Python.h."""
    get_scheme = getattr(sysconfig, "get_default_scheme", None)
    scheme = get_scheme() if get_scheme else None
    # Debian's posix_local scheme names a directory under /usr/local that holds no headers.
    if scheme is None or scheme == "posix_local":
        scheme = "posix_prefix"
    return sysconfig.get_path("include", scheme) or ""


def abi_tag():
    """cp312, cp313t …; empty for another implementation."""
    if sys.implementation.name != "cpython":
        return ""
    return "cp%d%d%s" % (sys.version_info[0], sys.version_info[1], getattr(sys, "abiflags", "").replace("d", ""))


os.write(int(os.environ.pop("DSDOCTOR_RESULT_FD")), json.dumps(describe()).encode() + b"\n")
