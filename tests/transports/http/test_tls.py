"""TLS, and plain HTTP on the loopback interface only."""

import functools
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import httpx
import pytest
from http_helpers import (
    ANSWER,
    DIGESTS,
    TOKENS,
    address,
    attend,
    estimator,
    serve,
    session,
)

from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.core.client import Client
from fedlib.transports.http import HTTP, JoinError, Limits, join
from fedlib.transports.http.client import other_scheme

USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Return a folder with a server's certificate and key, its authority and another one."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("certificates")
    today = datetime.now(UTC)

    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certify(subject, issuer, key, signer, *extensions):
        builder = x509.CertificateBuilder(name(issuer), name(subject), key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(today - timedelta(1)).not_valid_after(
            today + timedelta(1)
        )
        # Python 3.13 and later refuse certificates that do not name their keys.
        of_keys = (
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
        )
        for extension in (*of_keys, *extensions):
            builder = builder.add_extension(extension, critical=extension not in of_keys)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def authority(text):
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(**dict.fromkeys(USAGES, False) | {"key_cert_sign": True})
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        (folder / f"{text}.pem").write_bytes(certify(text, text, key, key, constraint, usage))
        return key

    right, _ = authority("right"), authority("wrong")
    key = ec.generate_private_key(ec.SECP256R1())
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    names = x509.SubjectAlternativeName(addresses)
    (folder / "cert.pem").write_bytes(certify("localhost", "right", key, right, names))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder


@pytest.fixture
def serve_tls(certificates):
    cert, key = (str(certificates / f"{name}.pem") for name in ("cert", "key"))
    return functools.partial(serve, cert=cert, key=key)


def test_tls_with_the_right_authority(certificates, serve_tls, points, start):
    here = estimator().fit(points[:2])
    clients = {name: HorizontalDBSCANClient(X) for name, X in zip("01", points[:2], strict=True)}
    with serve_tls("01") as transport:
        assert transport.url.startswith("https://127.0.0.1:")
        ends = attend(start, transport, clients, ca=str(certificates / "right.pem"))
        estimator().fit(transport)
    assert [end.result(ANSWER) for end in ends] == ["finished"] * 2
    for client, labels in zip(clients.values(), here.labels_, strict=True):
        assert client.state.labels.tobytes() == labels.tobytes()


@pytest.mark.parametrize("authority", ["wrong", None])
def test_a_server_with_an_unknown_certificate_receives_no_call(authority, certificates, serve_tls):
    ca = authority and str(certificates / f"{authority}.pem")
    begin = time.monotonic()
    with serve_tls("0") as transport:
        with pytest.raises(JoinError, match="certificate verify failed"):
            join(transport.url, Client(), TOKENS["0"], ca=ca, patience=ANSWER)
        assert session(transport).process == ""
    assert time.monotonic() - begin < 5  # it does not try again


def test_a_plain_call_to_a_server_with_tls_learns_it_at_once(serve_tls):
    with serve_tls("0") as transport:
        begin = time.monotonic()
        with pytest.raises(JoinError, match="the server uses TLS: call it as https://"):
            join(transport.url.replace("https", "http"), Client(), TOKENS["0"], patience=ANSWER)
        assert time.monotonic() - begin < ANSWER / 2
        assert session(transport).process == ""


def test_a_call_with_tls_to_a_plain_server_learns_it_at_once():
    with serve("0") as transport:
        begin = time.monotonic()
        with pytest.raises(JoinError, match="the server does not use TLS: call it as http://"):
            join(transport.url.replace("http", "https"), Client(), TOKENS["0"], patience=ANSWER)
        assert time.monotonic() - begin < ANSWER / 2


def test_a_plain_server_that_breaks_off_is_not_taken_for_one_with_tls():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = httpx.URL(f"http://127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        assert other_scheme(url, httpx.RemoteProtocolError("disconnected")) == ""
    assert other_scheme(url, httpx.ReadError("cut")) == ""  # nobody listens
    assert other_scheme(url, httpx.ConnectError("refused")) == ""


def test_silent_and_plain_callers_delay_nobody(certificates, serve_tls, points, start, capfd):
    with serve_tls("0") as transport:
        silent = [socket.create_connection(address(transport)) for _ in range(3)]
        with pytest.raises(JoinError, match="no answer"):
            join(transport.url.replace("https", "http"), Client(), TOKENS["0"], patience=0)
        begin = time.monotonic()
        ca = str(certificates / "right.pem")
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])}, ca=ca)
        estimator().fit(transport)
        assert time.monotonic() - begin < 5
        for line in silent:
            line.close()
    assert end.result(ANSWER) == "finished"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "beginning", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["silent", "slow"]
)
def test_a_handshake_has_a_deadline(beginning, certificates, serve_tls, points, start):
    """The bytes of a handshake that come one by one do not prolong it; clients are served."""
    with serve_tls("0", stranger_seconds=0.5) as transport:
        lines = [socket.create_connection(address(transport), ANSWER) for _ in range(8)]
        begin = time.monotonic()
        for line in lines:
            line.sendall(beginning)
        ca = str(certificates / "right.pem")
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])}, ca=ca)
        assert estimator().fit(transport).ledger_.lost == {}
        while time.monotonic() - begin < 10 and transport._server.listener._strangers:
            for line in lines if beginning else ():
                with suppress(OSError):
                    line.sendall(b"\x00")
            time.sleep(0.05)
        assert transport._server.listener._strangers == {}
        for line in lines:
            line.close()
    assert end.result(ANSWER) == "finished"


def test_plain_http_leaves_the_machine_only_with_insecure(points, start):
    message = "beyond the loopback interface: use TLS, or allow plain HTTP with insecure"
    for host in ("0.0.0.0", "[::]", "192.0.2.1", "example.org"):
        with pytest.raises(ValueError, match=f"bind has the host .*{message}"):
            HTTP(DIGESTS, f"{host}:0")
        with pytest.raises(ValueError, match=f"url has the host .*{message}"):
            join(f"http://{host}:80", Client(), TOKENS["0"])
    public = HTTP({"0": DIGESTS["0"]}, "0.0.0.0:0", insecure=True, limits=Limits(gone_after=2))
    with public as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])}, insecure=True)
        estimator().fit(transport)
    assert end.result(ANSWER) == "finished"
