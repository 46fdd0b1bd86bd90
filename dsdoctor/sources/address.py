"""The address of a service that the user names: http or https, no password, nothing that a request would not need."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from dsdoctor.errors import UsageError

SCHEMES = ("http", "https")


def service_address(text: str) -> str:
    """The base address in a text such as http://127.0.0.1:8000 or http://node1:30000/v1; UsageError for anything else."""
    example = "expected an address such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--service {text}: {error}; {example}") from None
    if parts.scheme.lower() not in SCHEMES:
        raise UsageError(f"--service {text}: only http and https are asked; {example}")
    if not host or any(character.isspace() or ord(character) < 32 for character in text.strip()):
        raise UsageError(f"--service {text}: it names no host; {example}")
    if parts.username or parts.password:
        raise UsageError("--service: an address with a user name or password is not taken; ask an endpoint that needs none")
    if parts.query or parts.fragment:
        raise UsageError(f"--service {text}: a query is not taken; {example}")
    if port == 0:
        raise UsageError(f"--service {text}: port 0 answers nobody; {example}")
    path = parts.path.rstrip("/").removesuffix("/health").removesuffix("/models").removesuffix("/v1")
    return urlunsplit((parts.scheme.lower(), parts.netloc, path, "", ""))
