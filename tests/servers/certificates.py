"""Certificates for servers and clients, of an authority that nobody else trusts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates. Files: ``NAME.pem`` and ``NAME.key`` in its folder; its own is ``ca``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"authority of {folder.name}")
        certificate = self._builder("ca", self._name, self._key)
        ours = x509.BasicConstraints(ca=True, path_length=None)
        signed = certificate.add_extension(ours, critical=True).sign(self._key, hashes.SHA256())
        self._write("ca", signed, self._key)

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, common_name: str, *, address: str | None = None) -> Path:
        """Of a client, or of the server at an address. The path without its suffix."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._builder(common_name, _name(common_name), key)
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
            certificate = certificate.add_extension(names, critical=False)
        self._write(common_name, certificate.sign(self._key, hashes.SHA256()), key)
        return self.folder / common_name

    def _builder(
        self, name: str, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(days=1),
            not_valid_after=now + timedelta(days=2),
        )

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        pem = serialization.Encoding.PEM
        (self.folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
        secret = self.folder / f"{name}.key"
        secret.touch(mode=0o600)  # or nobody takes it
        plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        secret.write_bytes(key.private_bytes(pem, *plain))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
