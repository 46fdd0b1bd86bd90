"""The entry of dsdoctor.pyz. Python 3.6 must be able to read it, to say what is missing."""

import sys

if sys.version_info < (3, 10):
    sys.stderr.write(
        f"dsdoctor: {sys.argv[0]} needs Python 3.10 or newer to run, and this is {sys.version_info[0]}.{sys.version_info[1]}; start it with "
        f"another one and name the one to examine: python3.12 {sys.argv[0]} check --python {sys.executable}\n"
    )
    sys.exit(2)

import importlib.util
import marshal
import os
import zipimport

HEADER_BYTES = 16
"""Of a file of bytecode (PEP 552)."""


class Archive(zipimport.zipimporter):
    """Takes the bytecode that the archive carries for this Python. The standard importer compiles every module, twice, at each start."""

    def get_filename(self, fullname):
        name = os.path.join(self.archive, self.prefix + fullname.rpartition(".")[2])
        return os.path.join(name, "__init__.py") if self.is_package(fullname) else name + ".py"

    def get_code(self, fullname):
        source = self.get_filename(fullname)
        try:
            content = self.get_data(importlib.util.cache_from_source(source))
        except OSError:
            content = b""
        if content[:4] != importlib.util.MAGIC_NUMBER:
            return compile(self.get_data(source), source, "exec", dont_inherit=True)
        return marshal.loads(content[HEADER_BYTES:])


sys.path_hooks.insert(0, Archive)
sys.path_importer_cache.clear()

from dsdoctor.cli import main  # noqa: E402

main()
