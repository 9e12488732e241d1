"""Address and certificates of a dask scheduler, checked before anything connects to it."""

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.security import Security

_ADDRESS = re.compile(r"(tls|tcp)://(?:\[([\da-fA-F:.]+)\]|([^\[\]:/@]+)):\d+")


class SchedulerError(RuntimeError):
    """A cluster can't be used, or is gone; what was finished until then is kept."""


@dataclass(frozen=True)
class Scheduler:
    """Address of a dask scheduler, and our certificates.

    A client of a scheduler can run any code as its user. ``tls://`` lets in clients with a certificate only;
    ``tcp://`` lets in all, so it is refused unless the address is this machine's own or ``plain_tcp`` says
    that the network is trusted. A ValueError says what can't be used.
    """

    address: str  # such as ``tls://scheduler.example.org:8786``
    ca_file: Path | str | None = None  # certificate of the authority that signed all others
    cert: Path | str | None = None  # our certificate
    key: Path | str | None = None  # its private key
    plain_tcp: bool = False  # whether every machine that can reach the scheduler or a worker is trusted
    patience_s: float = 60.0  # how long to wait for the scheduler, and for a worker where there is none

    def __post_init__(self) -> None:
        """Check all that can be checked without connecting."""
        parts = _ADDRESS.fullmatch(self.address)
        if parts is None:
            raise ValueError(f"scheduler must look like tls://host:port; got {self.address!r}")
        files = {"ca_file": self.ca_file, "cert": self.cert, "key": self.key}
        if parts[1] == "tls":
            if wrong := [f"{name}={file}" for name, file in files.items() if not Path(file or "").is_file()]:
                raise ValueError(f"tls:// needs ca_file, cert and key, each a file; got {', '.join(wrong)}")
        elif any(files.values()):
            raise ValueError(f"certificates are for tls://; got {self.address!r}")
        elif not self.plain_tcp and not _is_loopback(parts[2] or parts[3]):
            raise ValueError(
                f"{self.address}: over tcp:// anybody who reaches the scheduler or a worker can run any code "
                "there; remedy: tls:// with certificates, an SSH tunnel to 127.0.0.1, or plain_tcp=True "
                "(--plain-tcp) where every machine of the network is trusted"
            )

    def security(self) -> "Security | None":
        """Return dask's form of the certificates, None for ``tcp://``; a ValueError says what is wrong."""
        from distributed.security import Security

        if not self.address.startswith("tls"):
            return None
        files = {"tls_ca_file": self.ca_file, "tls_client_cert": self.cert, "tls_client_key": self.key}
        security = Security(require_encryption=True, **{name: str(path) for name, path in files.items()})
        try:
            security.get_connection_args("client")
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"the certificates for {self.address} can't be used: {error}") from error
        return security


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
