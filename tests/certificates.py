"""Certificates from a test's own certificate authority, as PEM files."""

from datetime import datetime
from pathlib import Path

import trustme

from pipelines.channels.handshake import Tls
from pipelines.domain.run import TlsFiles


class Authority:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._authority = trustme.CA()
        self._count = 0
        self.file = str(directory / "authority.pem")
        self._authority.cert_pem.write_to_path(self.file)

    def issued(self, until: datetime | None = None) -> TlsFiles:
        """Issues a certificate and key that this authority signs. They expire at `until`."""
        self._count += 1
        certificate = str(self._directory / f"certificate-{self._count}.pem")
        key = str(self._directory / f"key-{self._count}.pem")
        issued = self._authority.issue_cert("slots.example", not_after=until)
        issued.private_key_pem.write_to_path(key)
        for index, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(certificate, append=index > 0)
        return TlsFiles(certificate=certificate, key=key, authority=self.file)

    def tls(self) -> Tls:
        return Tls.load(self.issued())
