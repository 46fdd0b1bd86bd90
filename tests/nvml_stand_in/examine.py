"""Run the nvml probe alone and print the snapshot as JSON (started by `examine` with the stand-in's environment)."""

import dataclasses
import json
import sys

from dsdoctor.probes import PROBES

from dsdoctor.plain import to_plain
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import examine
from dsdoctor.sources.probe import Scope

arguments = json.loads(sys.argv[1])
indices = arguments["gpu_indices"]
probe = dataclasses.replace(next(probe for probe in PROBES if probe.name == "nvml"), timeout_s=arguments["timeout_s"])
scope = Scope(target=None, gpu_indices=None if indices is None else tuple(indices))
json.dump(to_plain(examine(Host(), scope, [probe])), sys.stdout)
