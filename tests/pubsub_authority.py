"""A certificate authority, keys and a token server for tests of TLS and credentials."""

import base64
import datetime
import ipaddress
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "solstice test")])


def _pem(key: Any) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _certificate(key: Any, issuer_key: Any, extension: x509.ExtensionType) -> str:
    now = datetime.datetime.now(datetime.UTC)
    is_ca = isinstance(extension, x509.BasicConstraints)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_NAME if is_ca else x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")]))
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(extension, critical=is_ca)
    )
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


class Authority:
    """A CA (``certificate``, PEM) and the identity it gave a server at 127.0.0.1 (certificate and key, PEM)."""

    def __init__(self) -> None:
        own, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        self.certificate = _certificate(own, own, x509.BasicConstraints(ca=True, path_length=None))
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        self.identity = (_certificate(server, own, names), _pem(server))


class TokenServer:
    """Exchanges grants for tokens: ``answer`` gets the form (none for metadata) and gives status and body."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.answer: Callable[[dict[str, str]], tuple[int, dict[str, Any]]] = lambda form: (200, self.token("token"))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == "/computeMetadata/v1/instance/service-accounts/default/token"
                assert self.headers["Metadata-Flavor"] == "Google"
                self._answer({})

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer({name: values[0] for name, values in parse_qs(text, strict_parsing=True).items()})

            def _answer(self, form: dict[str, str]) -> None:
                outer.requests.append(form)
                status, body = outer.answer(form)
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.uri = f"http://{self.host}/token"

    @staticmethod
    def token(value: str, expires_in: int = 3600) -> dict[str, Any]:
        return {"access_token": value, "expires_in": expires_in, "token_type": "Bearer"}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class ServiceAccount:
    """A service account with its key file."""

    email = "robot@p.iam.gserviceaccount.com"

    def __init__(self, folder: Path, token_uri: str) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self.file = folder / "key.json"
        self.pem = _pem(self._key)
        content = {
            "type": "service_account",
            "project_id": "p",
            "private_key_id": "key-1",
            "private_key": self.pem,
            "client_email": self.email,
            "token_uri": token_uri,
        }
        self.file.write_text(json.dumps(content))

    def claims(self, assertion: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Header and claims of an assertion that this account's key has signed; raises for any other."""
        signed, _, signature = assertion.rpartition(".")
        self._key.public_key().verify(_decode(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        header, claims = signed.split(".")
        return json.loads(_decode(header)), json.loads(_decode(claims))


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def user_file(folder: Path, token_uri: str, name: str = "user.json") -> Path:
    """An authorized user's file, as gcloud writes it."""
    content = {
        "type": "authorized_user",
        "client_id": "client",
        "client_secret": "s3cret-client",
        "refresh_token": "s3cret-refresh",
        "token_uri": token_uri,
    }
    path = folder / name
    path.write_text(json.dumps(content))
    return path
